//! HTML pages for browsers whose requests are refused or fail. Each page is self-contained.
//!
//! A page does not blame its reader alone: one address may have many users.

use std::borrow::Cow;

use crate::settings::{ErrorPages, Page, PagePart};

/// The content of a page.
#[derive(Clone, Debug)]
pub(crate) struct PageContent {
    pub(crate) status: u16,
    pub(crate) title: &'static str,
    /// The reason in a sentence. It contains nothing that needs escaping.
    pub(crate) detail: Cow<'static, str>,
    /// Seconds until the next attempt; none if waiting does not help.
    pub(crate) retry_secs: Option<u64>,
    /// Whether the browser may repeat the request by itself.
    pub(crate) is_repeatable: bool,
}

impl PageContent {
    /// The page for a failure of the backend, or for a host of no site.
    pub(crate) fn of_failure(status: u16, retry_secs: Option<u64>, is_repeatable: bool) -> Self {
        let (title, detail) = match status {
            421 => ("No such site", "There is no site with this name here. Please check the address."),
            504 => ("This is taking too long", "The site did not answer in time."),
            503 => ("Not available right now", "The site is not available at the moment."),
            _ => ("Not available right now", "The site does not answer properly at the moment."),
        };
        Self { status, title, detail: detail.into(), retry_secs, is_repeatable }
    }

    /// The operator's own page, or the built-in one.
    pub(crate) fn render(&self, pages: &ErrorPages) -> Vec<u8> {
        match pages.of(self.status) {
            Some(page) => self.fill(page),
            None => self.built_in(),
        }
    }

    fn fill(&self, page: &Page) -> Vec<u8> {
        let (mut status, mut secs) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (status, secs) = (status.format(self.status), self.retry_secs.map_or("", |retry| secs.format(retry)));
        let parts = page.parts.iter().map(|part| match part {
            PagePart::Text(text) => text,
            PagePart::Status => status,
            PagePart::Title => self.title,
            PagePart::Detail => &self.detail,
            PagePart::RetryAfter => secs,
        });
        parts.collect::<String>().into_bytes()
    }

    fn built_in(&self) -> Vec<u8> {
        let Self { title, detail, .. } = self;
        let (refresh, when) = match (self.retry_secs, self.is_repeatable) {
            (Some(secs), true) => (
                format!("<meta http-equiv=\"refresh\" content=\"{secs}\">"),
                format!("This page tries again by itself in <b id=\"s\">{secs}</b> s."),
            ),
            (Some(secs), false) => {
                (String::new(), format!("Your request was not carried out. Please send it again in {secs} s."))
            }
            (None, _) if self.status == 421 => (String::new(), String::new()),
            // Failures other than 421 have a retry time, so this is a refusal for good.
            (None, _) => (
                String::new(),
                "This request is larger than what is allowed, and waiting does not change that.".to_owned(),
            ),
        };
        let count = "<script>var e=document.getElementById('s'),n=e?+e.textContent:0;\
                     setInterval(function(){if(n>0)e.textContent=--n},1000)</script>";
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
             <style>body{{font:1.1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto 0;padding:0 1rem;color:#222}}\
             @media(prefers-color-scheme:dark){{body{{background:#181818;color:#ddd}}}}</style></head>\
             <body><h1>{title}</h1><p>{detail} {when}</p>{count}</body></html>\n"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: PageContent) -> String {
        String::from_utf8(content.render(&ErrorPages::default())).unwrap()
    }

    #[test]
    fn a_page_reloads_itself_only_if_the_request_may_be_repeated() {
        let page = text(PageContent::of_failure(502, Some(3), true));
        assert!(page.contains("<meta http-equiv=\"refresh\" content=\"3\">"), "{page}");
        let page = text(PageContent::of_failure(502, Some(3), false));
        assert!(!page.contains("http-equiv=\"refresh\"") && page.contains("send it again in 3 s"), "{page}");
    }
}

//! `[gate.pages]`: the operator's own HTML pages for refusals and errors, read from files and split at placeholders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use super::error::{ErrorCollector, shown};
use super::read_file;
use super::shape::Shape;
use super::suggestion::did_you_mean;
use super::table::{Located, Value, table};

/// Maximum size of a page, in bytes. Under load a gate sends many of them.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// The operator's own pages, by status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorPages {
    by_status: Vec<(u16, Arc<Page>)>,
}

impl ErrorPages {
    /// The page for this status.
    pub(crate) fn of(&self, status: u16) -> Option<&Page> {
        self.by_status.iter().find(|(known, _)| *known == status).map(|(_, page)| &**page)
    }
}

/// One page: text and placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Its parts, in order. The gate joins them for each response.
    pub(crate) parts: Vec<PagePart>,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PagePart {
    /// Text that is sent as it is.
    Text(String),
    /// `{{status}}`, such as 503.
    Status,
    /// `{{title}}`: the heading of the built-in page.
    Title,
    /// `{{detail}}`: the reason, as on the built-in page.
    Detail,
    /// `{{retry_after}}`: the value of `Retry-After` in seconds, or nothing if the response has none.
    RetryAfter,
}

const PLACEHOLDERS: [(&str, PagePart); 4] = [
    ("status", PagePart::Status),
    ("title", PagePart::Title),
    ("detail", PagePart::Detail),
    ("retry_after", PagePart::RetryAfter),
];

table! {
    /// Your own HTML pages for refusals and errors, by status, for clients that accept `text/html`. Each is a file in
    /// UTF-8 of at most 64 KiB. The gate reads it at the start and at every reload. In a page, `{{status}}` is replaced
    /// by the status, `{{title}}` by the heading of the built-in page, `{{detail}}` by the reason, and
    /// `{{retry_after}}` by the value of `Retry-After` in seconds (nothing if the response has none). Other clients
    /// receive `application/problem+json`.
    struct PagesTable {
        /// A rule refuses the request, or the client has used more than its share of a busy backend.
        too_many_requests as "429": PathBuf,
        /// The backend cannot be reached, or its response is not HTTP.
        bad_gateway as "502": PathBuf,
        /// The queue is full, or no backend is up.
        unavailable as "503": PathBuf,
        /// The backend takes too long.
        gateway_timeout as "504": PathBuf,
    }
}

impl Value for ErrorPages {
    type Parsed = Self;

    fn shape() -> Shape {
        PagesTable::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        PagesTable::read(value, errors).map(|table| table.resolve(errors))
    }
}

impl PagesTable {
    /// Reads the files.
    fn resolve(self, errors: &mut ErrorCollector) -> ErrorPages {
        let files = [
            (429, self.too_many_requests),
            (502, self.bad_gateway),
            (503, self.unavailable),
            (504, self.gateway_timeout),
        ];
        let mut pages = ErrorPages::default();
        for (status, file) in files {
            let Some(Located { value: path, span }) = file else { continue };
            match read_page(&path) {
                Ok(page) => pages.by_status.push((status, Arc::new(page))),
                Err(message) => errors.report(&span, message),
            }
        }
        pages
    }
}

fn read_page(path: &Path) -> Result<Page, String> {
    let file = path.display();
    let bytes = read_file(path).map_err(|message| format!("{file} {message}"))?;
    if bytes.len() > PAGE_BYTES_MAX {
        return Err(format!("{file} is larger than 64 KiB: link images and styles instead of including them"));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{file} is not UTF-8: save it as UTF-8"))?;
    parse(&text).map_err(|(line, message)| format!("{file}:{line}: {message}"))
}

/// Splits a page at its placeholders. Double braces around anything but one word are text: style sheets contain them.
/// The error is the line of an unknown placeholder, from 1, and a message.
fn parse(text: &str) -> Result<Page, (usize, String)> {
    let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        plain.push_str(before);
        let inside = after.split_once("}}").map(|(name, rest)| (name.trim(), rest));
        let is_word =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        match inside.filter(|(name, _)| is_word(name)) {
            Some((name, after)) => {
                let Some((_, part)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) else {
                    let line = text[..text.len() - rest.len() + before.len()].matches('\n').count() + 1;
                    let names = PLACEHOLDERS.map(|(name, _)| name);
                    let hint = did_you_mean(name, names);
                    let known = names.map(|name| format!("{{{{{name}}}}}")).join(", ");
                    return Err((line, format!("unknown placeholder {}{hint}; known are {known}", shown(name))));
                };
                parts.push(PagePart::Text(std::mem::take(&mut plain)));
                parts.push(part.clone());
                rest = after;
            }
            None => {
                plain.push_str("{{");
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    parts.push(PagePart::Text(plain));
    Ok(Page { parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_and_other_braces_are_text() {
        let text = |text: &str| PagePart::Text(text.to_owned());
        let page = parse("<p>{{ detail }} in {{retry_after}} s</p>{{").unwrap();
        assert_eq!(page.parts, [text("<p>"), PagePart::Detail, text(" in "), PagePart::RetryAfter, text(" s</p>{{")]);
        let styles = "a{{b:c}} @media x {{ a:b }}";
        assert_eq!(parse(styles).unwrap().parts, [text(styles)]);
        let (line, message) = parse("a\nb {{retry}}\n").unwrap_err();
        assert!(
            line == 2 && message.contains("unknown placeholder `retry`") && message.contains("{{retry_after}}"),
            "{line}: {message}"
        );
    }
}

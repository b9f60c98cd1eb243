//! The summary of a replay as one HTML page (`--html FILE`): no script, no external resource, so that it can be mailed
//! and archived.
//!
//! Names of clients, paths and user agents come from clients. Every text passes through [`escaped`].

mod chart;

use std::fmt::Write;

use tollgate_core::time::{Moment, Span};

use super::counts::Done;
use super::page::{TIMED_FORMAT, notes, pricing_remark, reasons, title_of_class, when};
use super::summary::{Summary, TalkersSummary};
use super::terminal_text::{count, dated_clock, length, percent, period, plural};

const STYLE: &str = include_str!("report.css");

/// The report of a summary.
pub(super) fn report(summary: &Summary) -> String {
    let mut page = HtmlPage { html: String::new() };
    page.head(summary);
    if summary.requests == 0 {
        page.paragraph("The recording contains no request.");
    } else {
        page.cards(summary);
        page.costs(summary);
        page.charts(summary);
        page.rules(summary);
        page.throttled(summary);
        page.suggestion(summary);
        page.talkers(summary);
        page.flags(summary);
    }
    page.notes(summary);
    page.html.push_str("</main>\n</body>\n</html>\n");
    page.html
}

/// Text for HTML, in elements and in quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    let entities = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    entities.iter().fold(text.to_owned(), |html, (symbol, entity)| html.replace(*symbol, entity))
}

struct HtmlPage {
    html: String,
}

impl HtmlPage {
    fn head(&mut self, summary: &Summary) {
        let file = escaped(&summary.recording.file);
        let span = length(Span::from_millis(summary.span_ms));
        let when = summary.first_at_ms.map(|first| format!("{} ({span})", when(first, first + summary.span_ms)));
        let when = escaped(&when.unwrap_or_default());
        _ = write!(
            self.html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>Replay of {file}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Replay of <code>{file}</code></h1>\n\
             <p class=\"when\">{when}</p>\n"
        );
    }

    fn heading(&mut self, title: &str) {
        _ = writeln!(self.html, "<h2>{}</h2>", escaped(title));
    }

    fn paragraph(&mut self, text: &str) {
        _ = writeln!(self.html, "<p>{}</p>", escaped(text));
    }

    fn code(&mut self, text: &str) {
        _ = writeln!(self.html, "<pre><code>{}</code></pre>", escaped(text));
    }

    fn cards(&mut self, summary: &Summary) {
        let done = &summary.decisions.done;
        let spent = |millis: u64| length(Span::from_millis(millis));
        let mut cards = vec![("Requests", count(summary.requests), String::new())];
        if let Some(cost_ms) = summary.cost_ms {
            let mean = cost_ms as f64 / summary.span_ms.max(1) as f64;
            cards.push(("Backend time", spent(cost_ms), format!("{mean:.2} cores on average")));
        }
        if !summary.rules.is_empty() {
            cards.push(("Held", count(done.held), percent(done.held, summary.requests)));
            let saved = match summary.cost_ms {
                Some(cost_ms) if done.saved_ms() > 0 => {
                    format!("saving {} of backend time", percent(done.saved_ms(), cost_ms))
                }
                _ => percent(done.refused, summary.requests),
            };
            cards.push(("Refused", count(done.refused), saved));
        }
        if let Some(cores) = summary.pricing.cores {
            let source = if summary.pricing.cores_estimated { "estimated from the log" } else { "as stated" };
            cards.push(("Cores of the backend", cores.to_string(), source.to_string()));
        }
        self.html.push_str("<dl class=\"cards\">\n");
        for (name, value, remark) in cards {
            let (value, remark) = (escaped(&value), escaped(&remark));
            _ = writeln!(self.html, "<div><dt>{name}</dt><dd>{value}<small>{remark}</small></dd></div>");
        }
        self.html.push_str("</dl>\n");
    }

    fn costs(&mut self, summary: &Summary) {
        if let Some(remark) = pricing_remark(summary) {
            self.paragraph(&remark);
        }
        if summary.budgets_are_blind() {
            self.paragraph(
                "The log has no durations, so budgets have no effect in this replay. Let the server log them, or use \
                 --estimate to estimate costs from path and size:",
            );
            self.code(&TIMED_FORMAT.join("\n"));
        }
    }

    fn charts(&mut self, summary: &Summary) {
        self.heading("Requests over time");
        self.html.push_str(&chart::requests(summary));
        if summary.cost_ms.is_some() {
            self.heading("Load of the backend");
            self.html.push_str(&chart::load(summary));
        }
    }

    fn rules(&mut self, summary: &Summary) {
        if summary.rules.is_empty() {
            return;
        }
        self.heading("Effect of each rule");
        let rows = summary.rules.iter().map(|rule| {
            let name = if rule.observes { format!("{} (observes)", rule.name) } else { rule.name.clone() };
            let [held, refused, saved] = effect(&rule.done);
            [name, rule.class.clone(), rule.limit.clone(), held, refused, saved]
        });
        self.table(["rule", "class", "limit", "held", "refused", "saved"], 3, rows);
    }

    fn throttled(&mut self, summary: &Summary) {
        if summary.rules.is_empty() {
            return;
        }
        self.heading("Clients that would have been held or refused");
        if summary.throttled.is_empty() {
            return self.paragraph("Nobody.");
        }
        let dated = summary.spans_days();
        let at = Moment::from_millis;
        let rows = summary.throttled.iter().map(|client| {
            let when = period(at(client.first_at_ms), at(client.last_at_ms), dated);
            let [held, refused, saved] = effect(&client.done);
            [client.rule.clone(), client.key.clone(), when, held, refused, saved]
        });
        self.table(["rule", "client", "when", "held", "refused", "saved"], 3, rows);
    }

    fn suggestion(&mut self, summary: &Summary) {
        let Some(suggestion) = &summary.suggestion else { return };
        self.heading(if suggestion.budget { "Suggested budget" } else { "Suggested limit" });
        self.paragraph(&reasons(suggestion));
        self.code(suggestion.toml.trim_end());
    }

    fn talkers(&mut self, summary: &Summary) {
        self.heading("Heaviest clients");
        for talkers in summary.talkers.iter().filter(|talkers| !talkers.heaviest.is_empty()) {
            self.talkers_of(talkers, summary);
        }
    }

    fn talkers_of(&mut self, talkers: &TalkersSummary, summary: &Summary) {
        let title = title_of_class(talkers.class);
        let unit = if summary.cost_ms.is_some() { "backend time" } else { "of all requests" };
        _ = write!(
            self.html,
            "<table>\n<thead><tr><th>{title}</th><th class=\"number\">requests</th><th class=\"number\">{unit}</th>\
             <th class=\"bar\"></th></tr></thead>\n<tbody>\n"
        );
        for talker in &talkers.heaviest {
            let (value, part, whole) = match summary.cost_ms {
                Some(cost_ms) => (length(Span::from_millis(talker.cost_ms)), talker.cost_ms, cost_ms),
                None => (percent(talker.requests, summary.requests), talker.requests, summary.requests),
            };
            _ = writeln!(
                self.html,
                "<tr><td><code>{}</code></td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"bar\"><span style=\"width: {:.1}%\"></span></td></tr>",
                escaped(&talker.key),
                count(talker.requests),
                escaped(&value),
                (part as f64 / whole.max(1) as f64).min(1.0) * 100.0,
            );
        }
        self.html.push_str("</tbody>\n</table>\n");
    }

    fn flags(&mut self, summary: &Summary) {
        if summary.flags.is_empty() {
            return;
        }
        self.heading("Flags");
        let rows = summary.flags.iter().map(|flag| {
            let at = dated_clock(Moment::from_millis(flag.at_ms), true);
            [flag.account.clone(), at, plural(flag.refused, "refusal")]
        });
        self.table(["account", "when", "after"], 2, rows);
        self.paragraph("A flag marks an account for review by an operator. It does not block the account.");
    }

    fn notes(&mut self, summary: &Summary) {
        let notes = notes(summary);
        if notes.is_empty() && summary.recording.unreadable.lines == 0 {
            return;
        }
        self.heading("Notes");
        self.html.push_str("<ul>\n");
        if summary.recording.unreadable.lines > 0 {
            let lines = plural(summary.recording.lines, "line");
            _ = writeln!(
                self.html,
                "<li>{} of {lines} could not be parsed.</li>",
                count(summary.recording.unreadable.lines)
            );
        }
        for note in notes {
            _ = writeln!(self.html, "<li>{}</li>", escaped(&note));
        }
        self.html.push_str("</ul>\n");
    }

    /// A table. `numbers` is the index of the first column with numbers; it and all columns after it are aligned right.
    fn table<const N: usize>(&mut self, titles: [&str; N], numbers: usize, rows: impl Iterator<Item = [String; N]>) {
        let class = |column: usize| if column >= numbers { " class=\"number\"" } else { "" };
        self.html.push_str("<table>\n<thead><tr>");
        for (column, title) in titles.iter().enumerate() {
            _ = write!(self.html, "<th{}>{title}</th>", class(column));
        }
        self.html.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.html.push_str("<tr>");
            for (column, text) in row.iter().enumerate() {
                _ = write!(self.html, "<td{}>{}</td>", class(column), escaped(text));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody>\n</table>\n");
    }
}

/// The cells "held", "refused" and "saved" of a row.
fn effect(done: &Done) -> [String; 3] {
    let saved = if done.saved_ms() > 0 { length(Span::from_millis(done.saved_ms())) } else { "-".to_string() };
    [count(done.held + done.would_hold), count(done.refused + done.would_refuse), saved]
}

//! The summary of a replay as text for a terminal, in 80 columns. It is printed without `--json` and `--decisions`. The
//! HTML report uses some of its sentences.

use tollgate_core::time::{Moment, Span};

use super::counts::Done;
use super::pricing::CostSource;
use super::suggestion::{Outlier, Suggestion};
use super::summary::{Recording, Summary, TalkersSummary, ThrottledSummary};
use super::terminal_text::{clock, count, date, dated_clock, fitted, length, percent, period, plural, short, width};
use super::timeline_chart;
use crate::colours::{BOLD, CYAN, Colours, DIM, GREEN, RED, YELLOW};
use crate::terminal_text::wrapped;

/// The maximum width of a line.
pub(super) const COLUMNS: usize = 80;
/// The maximum number of throttled clients on the page; `--json` has more.
const THROTTLED_MAX: usize = 10;
/// The maximum number of heavy clients of each class.
const TALKERS_MAX: usize = 3;
/// The maximum number of flags.
const FLAGS_MAX: usize = 10;

/// The text of the page. `ink` adds colours, or none.
pub(super) fn page(summary: &Summary, ink: Colours) -> String {
    let mut page = TextPage { text: String::new(), ink };
    page.head(summary);
    if summary.requests == 0 {
        page.prose("The recording contains no request.");
        return page.text;
    }
    if summary.rules.is_empty() {
        page.without_rules(summary);
    } else {
        page.outcome(summary);
        page.rules(summary);
        page.throttled(summary);
    }
    page.heading("When");
    page.text.push_str(&timeline_chart::chart(summary, ink));
    page.flags(summary);
    page.suggestion(summary);
    page.notes(summary);
    page.text
}

struct TextPage {
    text: String,
    ink: Colours,
}

impl TextPage {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn heading(&mut self, title: &str) {
        self.text.push('\n');
        self.line(&self.ink.paint(BOLD, title));
    }

    /// A line that stands out.
    fn marked(&mut self, text: &str) {
        self.line(&format!("  {}", self.ink.paint(YELLOW, text)));
    }

    /// A line to type.
    fn code(&mut self, text: &str) {
        self.line(&format!("    {}", self.ink.paint(CYAN, text)));
    }

    /// Text, wrapped and indented by two columns.
    fn prose(&mut self, words: &str) {
        for line in wrapped(words, COLUMNS - 2) {
            self.line(&format!("  {}", fitted(&line, COLUMNS - 2)));
        }
    }

    fn head(&mut self, summary: &Summary) {
        let title = fitted(&format!("Replay of {}", summary.recording.file), COLUMNS);
        self.line(&self.ink.paint(BOLD, title.trim_end()));
        let Recording { format, gzip, .. } = summary.recording;
        let kind = if format == "trace" { "" } else { " access log" };
        let gzip = if gzip { ", gzip" } else { "" };
        let span = Span::from_millis(summary.span_ms);
        let when = summary.first_at_ms.map(|first| when(first, first + summary.span_ms));
        let when = when.map_or(String::new(), |when| format!(" · {when} ({})", length(span)));
        self.prose(&format!("{format}{kind}{gzip}{when}"));
        let cost = match summary.cost_ms {
            Some(cost_ms) => format!(" · {} of backend time", length(Span::from_millis(cost_ms))),
            None => String::new(),
        };
        self.prose(&format!("{}{cost}", plural(summary.requests, "request")));
        self.pricing(summary);
        self.unreadable(summary);
    }

    fn pricing(&mut self, summary: &Summary) {
        if let Some(remark) = pricing_remark(summary) {
            self.prose(&remark);
        }
        if summary.budgets_are_blind() {
            self.marked("The log has no durations, so budgets have no effect in this replay.");
            self.prose("Let the server log them, or use --estimate to estimate costs from path and size:");
            TIMED_FORMAT.iter().for_each(|line| self.code(line));
        }
    }

    fn unreadable(&mut self, summary: &Summary) {
        if summary.recording.unreadable.lines == 0 {
            return;
        }
        let lines = format!(
            "{} of {} could not be parsed:",
            count(summary.recording.unreadable.lines),
            plural(summary.recording.lines, "line")
        );
        self.marked(&lines);
        for unreadable in &summary.recording.unreadable.first {
            let text =
                format!("line {}, column {}: expected {}", unreadable.line, unreadable.column, unreadable.expected);
            self.line(&format!("    {}", fitted(&text, COLUMNS - 4)));
        }
        if summary.recording.unreadable.lines > summary.recording.unreadable.first.len() as u64 {
            self.line("    …");
        }
    }

    fn outcome(&mut self, summary: &Summary) {
        self.heading("Effect of the rules");
        let decisions = &summary.decisions;
        let done = &decisions.done;
        let hold = |millis: u64| length(Span::from_millis(millis));
        let held = match done.held {
            0 => String::new(),
            _ => format!("for {} on average, {} at most", hold(decisions.hold_ms_mean), hold(decisions.hold_ms_max)),
        };
        let saved = match summary.cost_ms {
            Some(cost_ms) if done.refused > 0 => {
                let part = percent(done.saved_ms(), cost_ms);
                format!("saving {} of backend time ({part})", hold(done.saved_ms()))
            }
            _ => String::new(),
        };
        let rows = [
            ("passed", decisions.admitted, String::new(), GREEN),
            ("held", done.held, held, YELLOW),
            ("refused", done.refused, saved, RED),
        ];
        for (word, number, remark, colour) in rows {
            let plain = format!("{word:<8} {:>12} {:>8}", count(number), percent(number, summary.requests));
            let figures = if number > 0 { self.ink.paint(colour, &plain) } else { plain.clone() };
            let columns = COLUMNS.saturating_sub(4 + width(&plain));
            self.line(&format!("  {figures}  {}", fitted(&remark, columns)));
        }
        if done.would_hold + done.would_refuse > 0 {
            let words = format!(
                "Rules in observe mode would have held {} and refused {} of these.",
                count(done.would_hold),
                count(done.would_refuse)
            );
            self.prose(&words);
        }
    }

    fn rules(&mut self, summary: &Summary) {
        self.heading("Rule by rule");
        let titles =
            format!("  {:<15} {:<13} {:<23} {:>6} {:>7} {:>8}", "rule", "class", "limit", "held", "refused", "saved");
        self.line(&self.ink.paint(DIM, &titles));
        for rule in &summary.rules {
            let line = format!(
                "  {} {} {} {:>6} {:>7} {:>8}",
                fitted(&rule.name, 15),
                fitted(&rule.class, 13),
                fitted(&rule.limit, 23),
                short(rule.done.held + rule.done.would_hold),
                short(rule.done.refused + rule.done.would_refuse),
                saved(&rule.done),
            );
            self.line(&line);
            if rule.observes {
                self.line("      in observe mode: it would have held and refused these");
            }
        }
    }

    fn throttled(&mut self, summary: &Summary) {
        let throttled: &[ThrottledSummary] = &summary.throttled;
        let dated = summary.spans_days();
        // The widths of these two columns.
        let (who, when) = if dated { (22, 17) } else { (28, 11) };
        self.heading("Clients that would have been held or refused");
        if throttled.is_empty() {
            return self.prose("Nobody.");
        }
        let titles =
            format!("  {:<12} {:<who$} {:>6} {:>7} {:>8} {:>when$}", "rule", "who", "held", "refused", "saved", "when");
        self.line(&self.ink.paint(DIM, &titles));
        for caller in throttled.iter().take(THROTTLED_MAX) {
            let at = Moment::from_millis;
            let line = format!(
                "  {} {} {:>6} {:>7} {:>8} {:>when$}",
                fitted(&caller.rule, 12),
                fitted(&caller.key, who),
                short(caller.done.held + caller.done.would_hold),
                short(caller.done.refused + caller.done.would_refuse),
                saved(&caller.done),
                period(at(caller.first_at_ms), at(caller.last_at_ms), dated),
            );
            self.line(&line);
        }
        let episodes: u64 = throttled.iter().map(|caller| caller.episodes).sum();
        if episodes > 0 {
            let end = "An episode ends after an hour without a refusal, or after `flag_window` if that is longer.";
            self.prose(&format!("{} of refusals. {end}", plural(episodes, "episode")));
        }
    }

    fn without_rules(&mut self, summary: &Summary) {
        let why = match summary.recording.configured {
            true => "The configuration has no rules",
            false => "No rules were given (--config FILE)",
        };
        self.heading("No rules yet");
        let words = format!(
            "{why}, so no rule would have held or refused anybody. A gate without rules shares its backend fairly: while it is \
             busy, the client that has spent least goes first. These clients have spent most:"
        );
        self.prose(&words);
        for talkers in &summary.talkers {
            self.talkers(talkers, summary);
        }
    }

    fn talkers(&mut self, talkers: &TalkersSummary, summary: &Summary) {
        let title = title_of_class(talkers.class);
        self.text.push('\n');
        let titles = format!("  {title:<43} {:>9} {:>13} {:>8}", "requests", "backend time", "");
        self.line(&self.ink.paint(DIM, &titles));
        for talker in talkers.heaviest.iter().take(TALKERS_MAX) {
            let (cost, part) = match summary.cost_ms {
                Some(cost_ms) => (length(Span::from_millis(talker.cost_ms)), percent(talker.cost_ms, cost_ms)),
                None => ("-".to_string(), percent(talker.requests, summary.requests)),
            };
            let requests = if talker.requests < 10_000_000 { count(talker.requests) } else { short(talker.requests) };
            self.line(&format!("  {} {requests:>9} {cost:>13} {part:>8}", fitted(&talker.key, 43)));
        }
    }

    fn flags(&mut self, summary: &Summary) {
        if summary.flags.is_empty() {
            return;
        }
        self.heading("Flags");
        for flag in summary.flags.iter().take(FLAGS_MAX) {
            let at = Moment::from_millis(flag.at_ms);
            let at = if summary.spans_days() { dated_clock(at, true) } else { clock(at, true) };
            let line = format!("{at}  {}  after {} refusals", fitted(&flag.account, 26), count(flag.refused));
            self.marked(&line);
        }
        let more = summary.flags.len().saturating_sub(FLAGS_MAX);
        if more > 0 {
            self.line(&format!("  … and {more} more"));
        }
        self.prose("A flag marks an account for review by an operator. It does not block the account.");
    }

    fn suggestion(&mut self, summary: &Summary) {
        let Some(suggestion) = &summary.suggestion else {
            if summary.decisions.done.refused + summary.decisions.done.held > 0 {
                self.heading("More rules?");
                self.prose("No client stands out among the admitted requests, so no rule is suggested.");
            }
            return;
        };
        self.heading(if suggestion.budget { "Suggested budget" } else { "A limit to begin with" });
        self.prose(&reasons(suggestion));
        self.text.push('\n');
        suggestion.toml.lines().for_each(|line| self.code(line));
        self.text.push('\n');
        let sum = |figure: fn(&Outlier) -> u64| suggestion.outliers.iter().map(figure).fold(0, u64::saturating_add);
        let (allowed, spent) = (sum(|outlier| outlier.allowed), sum(|outlier| outlier.spent));
        if allowed < spent {
            let (allowed, spent) = (suggestion.figure(allowed), suggestion.figure(spent));
            self.prose(&format!("With it, {} would have had at most {allowed} instead of {spent}.", suggestion.who()));
        } else {
            self.prose("It spreads these peaks over time and changes nothing else.");
        }
    }

    fn notes(&mut self, summary: &Summary) {
        let notes = notes(summary);
        if !notes.is_empty() {
            self.heading("Notes");
            notes.iter().for_each(|note| self.prose(&format!("- {note}")));
        }
    }
}

/// Remarks on unusual properties of the recording.
pub(super) fn notes(summary: &Summary) -> Vec<String> {
    let oddities = &summary.oddities;
    let mut notes = Vec::new();
    if summary.cost_ms.is_some() && oddities.without_cost > 0 {
        notes.push(format!("{} have no cost in the log and count as free.", plural(oddities.without_cost, "request")));
    }
    if oddities.garbled > 0 && summary.recording.format != "trace" {
        let requests = plural(oddities.garbled, "request");
        notes.push(format!("{requests} had no valid request line and are counted as requests."));
    }
    if oddities.named_clients > 0 {
        let named = plural(oddities.named_clients, "request");
        notes.push(format!("{named} name a host instead of an address: each name counts as a network of its own."));
    }
    if oddities.sorted > 0 {
        notes.push(format!("{} out of order, sorted by time.", were(oddities.sorted)));
    }
    if oddities.out_of_order > 0 && summary.recording.format == "trace" {
        let lines = were(oddities.out_of_order);
        notes.push(format!("{lines} out of order and processed at the time of the line before."));
    } else if oddities.out_of_order > 0 {
        notes.push(format!(
            "{} out of order by more than ten minutes and processed at the time of the line before. If the file \
             was put together from several ones, sort it by time first.",
            were(oddities.out_of_order)
        ));
    }
    if oddities.evicted > 0 {
        let callers = plural(oddities.evicted, "time");
        notes.push(format!(
            "The table was too small {callers}: `gate.memory` sets its size. No limit was refilled by it."
        ));
    }
    if oddities.cut_short > 0 {
        notes.push(format!(
            "{} ended early, because too many were in flight at once.",
            plural(oddities.cut_short, "request")
        ));
    }
    notes
}

impl Suggestion {
    /// Formats a value of this suggestion: a duration, or a number of requests.
    fn figure(&self, figure: u64) -> String {
        if self.budget { length(Span::from_millis(figure)) } else { plural(figure, "request") }
    }

    /// The outliers, as the subject of a sentence.
    fn who(&self) -> &'static str {
        if self.outliers.len() == 1 { "that one" } else { "they together" }
    }
}

/// The reasons for a suggestion.
pub(super) fn reasons(suggestion: &Suggestion) -> String {
    let figure = |figure| suggestion.figure(figure);
    let Some(first) = suggestion.outliers.first() else {
        return String::new();
    };
    let of_backend = if suggestion.budget { " of backend time" } else { "" };
    let who = match suggestion.outliers.len() {
        1 => format!("{} spent up to {}{of_backend} in a minute.", first.key, figure(first.busiest_minute)),
        more => format!(
            "{} and {} spent up to {}{of_backend} each in a minute.",
            first.key,
            plural(more as u64 - 1, "other"),
            figure(first.busiest_minute)
        ),
    };
    let others = match suggestion.others_busiest_minute {
        0 => "No other client comes close.".to_string(),
        others => format!("No other client spent more than {}.", figure(others)),
    };
    let name = if suggestion.outliers.len() == 1 { "that one" } else { "those" };
    format!("{who} {others} This rule limits {name} and does not affect the others:")
}

/// The title of a list of clients of this class.
pub(super) fn title_of_class(class: &str) -> &'static str {
    match class {
        "ip/32" => "by address (ip/32)",
        "ip/24" => "by network (ip/24)",
        "ip/16" => "by block (ip/16)",
        "user-agent" => "by user agent",
        _ => "by route (path)",
    }
}

/// `1 line was`, `2 lines were`.
fn were(lines: u64) -> String {
    format!("{} {}", plural(lines, "line"), if lines == 1 { "was" } else { "were" })
}

/// The log format with durations, for nginx and Apache.
pub(super) const TIMED_FORMAT: [&str; 5] = [
    "# nginx",
    "log_format timed '$remote_addr - $remote_user [$time_local] \"$request\" '",
    "                 '$status $body_bytes_sent \"$http_referer\" '",
    "                 '\"$http_user_agent\" $request_time';",
    "# Apache: append %D to the LogFormat",
];

fn cores_text(cores: f64) -> String {
    format!("{cores} core{}", if cores == 1.0 { "" } else { "s" })
}

/// A remark on costs that are not those of the log.
pub(super) fn pricing_remark(summary: &Summary) -> Option<String> {
    let pricing = &summary.pricing;
    match (pricing.source, pricing.cores) {
        (CostSource::Shares, Some(cores)) => {
            let cores = match pricing.cores_estimated {
                true => format!("{} (estimated; --cores N states them)", cores_text(cores)),
                false => cores_text(cores),
            };
            Some(format!(
                "The recorded durations add up to {}, because requests waited for each other: for {} more requests \
                 were in flight than the backend has cores. Each is charged its share of {cores}.",
                length(Span::from_millis(pricing.recorded_ms)),
                length(Span::from_millis(pricing.saturated_ms)),
            ))
        }
        (CostSource::RoughEstimate, _) => {
            Some("Costs are rough estimates from method, path and size, because the log has no durations.".to_string())
        }
        _ => None,
    }
}

/// The first and the last time, with the date if there is one.
pub(super) fn when(first_ms: u64, last_ms: u64) -> String {
    let (first, last) = (Moment::from_millis(first_ms), Moment::from_millis(last_ms));
    match (date(first), date(last)) {
        (Some(day), Some(other)) if day == other => {
            format!("{day} {} to {} UTC", clock(first, false), clock(last, false))
        }
        (Some(day), Some(other)) => format!("{day} {} to {other} {} UTC", clock(first, false), clock(last, false)),
        _ => format!("{} to {}", clock(first, true), clock(last, true)),
    }
}

/// The saved cost, in at most eight columns.
fn saved(done: &Done) -> String {
    match done.saved_ms() / 1000 {
        0 if done.saved_ms() == 0 => "-".to_string(),
        0 => format!("{} ms", done.saved_ms()),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..3_600_000 => format!("{:.1} h", seconds as f64 / 3600.0),
        seconds => format!("{} h", short(seconds / 3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pricing::PricingSummary;
    use super::super::replay_watch::SetFlag;
    use super::super::suggestion::SuggestedLimit;
    use super::super::summary::*;
    use super::super::timeline::{TimelineColumn, TimelineSummary};
    use super::*;
    use tollgate_core::band::Band;

    /// Larger than any real value.
    const MANY: u64 = 10_000_000_000_000;

    /// A summary in which every value has its maximum length.
    fn extreme(rules: usize) -> Summary {
        let long = "名前".repeat(60);
        let done = Done { held: MANY, refused: MANY, would_hold: 7, would_refuse: 8, saved: Span::from_millis(MANY) };
        let rule =
            |_| RuleSummary { name: long.clone(), class: long.clone(), limit: long.clone(), observes: true, done };
        let throttled = |_| ThrottledSummary {
            rule: long.clone(),
            class: long.clone(),
            key: long.clone(),
            done,
            first_at_ms: 0,
            last_at_ms: MANY,
            episodes: MANY,
        };
        let talker = |_| TalkerSummary {
            key: long.clone(),
            requests: MANY,
            cost_ms: MANY,
            busiest_minute_cost_ms: 0,
            busiest_minute_requests: 0,
        };
        let cost = Span::from_millis(5);
        let column =
            |_| TimelineColumn { requests: MANY, held: 1, refused: 1, cost, cost_admitted: cost, band: Band::Critical };
        let outlier = Outlier { key: long.clone(), busiest_minute: MANY, spent: 9, allowed: 1 };
        let unreadable = UnreadableLine { line: MANY, column: u32::MAX, expected: long.clone() };
        Summary {
            recording: Recording {
                file: long.clone(),
                format: "combined",
                gzip: true,
                configured: true,
                lines: MANY,
                unreadable: Unreadable { lines: MANY, first: vec![unreadable] },
            },
            requests: MANY,
            first_at_ms: Some(1_794_441_600_000),
            span_ms: MANY,
            cost_ms: Some(MANY),
            pricing: PricingSummary {
                source: CostSource::Shares,
                cores: Some(1e6),
                cores_estimated: true,
                recorded_ms: MANY,
                saturated_ms: MANY,
            },
            oddities: Oddities {
                sorted: 9,
                out_of_order: 9,
                without_cost: 9,
                garbled: 9,
                named_clients: 9,
                cut_short: 9,
                evicted: 9,
            },
            decisions: Decisions { admitted: MANY, done, hold_ms_mean: MANY, hold_ms_max: MANY },
            rules: (0..rules).map(rule).collect(),
            throttled: (0..rules).map(throttled).collect(),
            flags: vec![SetFlag { account: long.clone(), at_ms: MANY, refused: MANY }],
            talkers: vec![TalkersSummary { class: "ip/32", heaviest: (0..9).map(talker).collect() }],
            timeline: TimelineSummary { begin_at_ms: 0, column_ms: 1000, columns: (0..56).map(column).collect() },
            suggestion: Some(Suggestion {
                toml: "[[rule]]\n".into(),
                class: "ip/32",
                budget: true,
                outliers: vec![outlier],
                others_busiest_minute: 5,
                limit: SuggestedLimit::Rate { per_minute: 1, burst: 1 },
            }),
        }
    }

    #[test]
    fn no_line_is_wider_than_the_page_for_any_values_and_names() {
        for rules in [0, 3] {
            for line in page(&extreme(rules), Colours { on: false }).lines() {
                assert!(width(line) <= COLUMNS, "{} columns: {line}", width(line));
            }
        }
    }
}

//! What the doctor draws: lines of text, made of the last answers and of what was pressed.

use std::cmp::Ordering;

use serde_json::Value;
use unicode_width::UnicodeWidthChar;

use super::caller::Caller;
use super::columns;
use super::help;
use super::keyboard::Key;
use super::notice;
use crate::admin_client::harmless;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
const INVERSE: &str = "\x1b[7m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";

/// The class that stands for the one where the load is concentrated.
pub(super) const AUTO: &str = "auto";

/// How many lines the list has at least: what is written above callers, and one of them.
const BODY_MIN: usize = 2;
/// How many it has at least where there are charts.
const BODY_WITH_CHARTS_MIN: usize = 6;

/// What a key leads to. Later counts more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asked {
    Nothing,
    /// Other figures are needed.
    Figures,
    Leave,
}

/// What callers are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Cpu,
    Wait,
    Requests,
    Refused,
    Last,
}

/// What is shown.
pub(super) struct View {
    host: String,
    class: String,
    classes: Vec<String>,
    status: Value,
    samples: Vec<Value>,
    callers: Vec<Caller>,
    order: Order,
    /// What is searched for, and whether it is being typed.
    filter: String,
    typing: bool,
    /// The caller that was chosen, wherever it is now; none until somebody chooses, and then whoever is on top is marked.
    chosen: Option<String>,
    /// Where that was when it was last there.
    place: usize,
    opened: Option<String>,
    detail: Option<Value>,
    /// Whether the help screen is open.
    is_helping: bool,
    trouble: Option<String>,
}

impl View {
    pub(super) fn new(host: &str, class: &str) -> Self {
        Self {
            host: harmless(host),
            class: class.to_owned(),
            classes: Vec::new(),
            status: Value::Null,
            samples: Vec::new(),
            callers: Vec::new(),
            order: Order::Cpu,
            filter: String::new(),
            typing: false,
            chosen: None,
            place: 0,
            opened: None,
            detail: None,
            is_helping: false,
            trouble: None,
        }
    }

    pub(super) fn class(&self) -> &str {
        &self.class
    }

    /// The key whose own page is open.
    pub(super) fn opened(&self) -> Option<&str> {
        self.opened.as_deref()
    }

    /// Takes answers in.
    pub(super) fn take(&mut self, status: &Value, history: &Value, buckets: &Value, detail: Option<Value>) {
        self.trouble = None;
        self.status = status.clone();
        self.samples = history["samples"].as_array().cloned().unwrap_or_default();
        let classes = buckets["classes"].as_array().into_iter().flatten();
        self.classes = classes.filter_map(|class| class.as_str().map(str::to_owned)).collect();
        if let (AUTO, Some(class)) = (&*self.class, buckets["class"].as_str()) {
            self.class = class.to_owned();
        }
        self.callers = Caller::all(&buckets["buckets"]);
        self.place = self.selected();
        self.detail = detail;
    }

    /// Says why there are no new figures.
    pub(super) fn trouble(&mut self, text: String) {
        self.trouble = Some(harmless(&text));
    }

    /// Does what a key means.
    pub(super) fn press(&mut self, key: Key) -> Asked {
        if key == Key::Interrupt {
            return Asked::Leave;
        }
        if self.typing {
            self.type_filter(key);
            return Asked::Nothing;
        }
        if self.is_helping || key == Key::Char('?') {
            self.is_helping = !self.is_helping;
            return Asked::Nothing;
        }
        match key {
            Key::Char('q') if self.opened.is_none() => return Asked::Leave,
            Key::Escape | Key::Char('q') | Key::Backspace => {
                (self.opened, self.detail) = (None, None);
                self.filter.clear();
            }
            Key::Enter => {
                self.choose(self.selected());
                self.opened.clone_from(&self.chosen);
                return Asked::Figures;
            }
            Key::Char('/') => {
                self.typing = true;
                self.filter.clear();
            }
            Key::Tab => return self.turn(1),
            Key::BackTab => return self.turn(self.classes.len().saturating_sub(1)),
            Key::Up | Key::Char('k') => self.choose(self.selected().saturating_sub(1)),
            Key::Down | Key::Char('j') => self.choose(self.selected() + 1),
            Key::PageUp => self.choose(self.selected().saturating_sub(10)),
            Key::PageDown => self.choose(self.selected() + 10),
            Key::Char('c') => self.order = Order::Cpu,
            Key::Char('w') => self.order = Order::Wait,
            Key::Char('r') => self.order = Order::Requests,
            Key::Char('x') => self.order = Order::Refused,
            Key::Char('l') => self.order = Order::Last,
            Key::Char(_) | Key::Interrupt => {}
        }
        Asked::Nothing
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.len() < 100 => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        (self.chosen, self.place) = (None, 0);
    }

    /// Goes to another class.
    fn turn(&mut self, steps: usize) -> Asked {
        if self.classes.is_empty() {
            return Asked::Nothing;
        }
        let place = self.classes.iter().position(|class| *class == self.class).unwrap_or(0);
        self.class = self.classes[(place + steps) % self.classes.len()].clone();
        (self.chosen, self.place, self.opened) = (None, 0, None);
        Asked::Figures
    }

    /// Marks the caller at this place, or the last one.
    fn choose(&mut self, place: usize) {
        let shown = self.shown();
        let place = place.min(shown.len().saturating_sub(1));
        let chosen = shown.get(place).map(|caller| caller.key.clone());
        (self.chosen, self.place) = (chosen, place);
    }

    /// Where the caller is that is marked; one that has left is marked by its place.
    fn selected(&self) -> usize {
        let shown = self.shown();
        let chosen = self.chosen.as_ref().and_then(|key| shown.iter().position(|caller| caller.key == *key));
        chosen.unwrap_or(self.place).min(shown.len().saturating_sub(1))
    }

    /// The callers that are wanted, in their order.
    fn shown(&self) -> Vec<&Caller> {
        let wanted = self.filter.to_lowercase();
        let mut shown: Vec<_> =
            self.callers.iter().filter(|caller| caller.title.to_lowercase().contains(&wanted)).collect();
        shown.sort_by(|a, b| self.order.compare(a, b));
        shown
    }

    /// Everything, for a screen of this size.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut lines = self.header(width);
        // Who spends is what this is for: a caller and what is written above it have room on any screen.
        lines.truncate(height.saturating_sub(BODY_MIN + 1).max(1));
        let charts = if self.is_helping { Vec::new() } else { self.charts(width) };
        if height >= 14 && lines.len() + charts.len() + BODY_WITH_CHARTS_MIN < height {
            lines.extend(charts);
        }
        let room = height.saturating_sub(lines.len() + 1);
        let body = match () {
            () if self.is_helping => help::lines(width).iter().map(|line| cut(line, width)).collect(),
            () if self.opened.is_some() => self.page(width),
            () => self.list(width, room),
        };
        lines.extend(body.into_iter().take(room));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.footer(width));
        lines.truncate(height);
        lines
    }

    fn header(&self, width: usize) -> Vec<String> {
        let band = harmless(self.status["band"]["name"].as_str().unwrap_or("-"));
        let colour = match &*band {
            "normal" => GREEN,
            "elevated" => YELLOW,
            "critical" => RED,
            _ => DIM,
        };
        let sustained = self.status["band"]["sustained_ms"].as_u64().unwrap_or(0);
        let last = self.samples.last().unwrap_or(&Value::Null);
        let rate = |name: &str| last[name].as_f64().unwrap_or(0.0);
        let first = format!("{BOLD}tollgate{PLAIN} {}  {colour}{band}{PLAIN} (waits {sustained} ms)", self.host);
        let requests = &self.status["requests"];
        let pieces = [
            format!("{GREEN}{:.0}{PLAIN} admitted/s", rate("admitted")),
            format!("{YELLOW}{:.0}{PLAIN} held/s", rate("held")),
            format!("{RED}{:.0}{PLAIN} refused/s", rate("refused")),
            format!("at backend {}/{}", shown(&requests["in_flight"]), shown(&requests["in_flight_max"])),
            format!("waiting {}", shown(&last["waiting"])),
            format!("p50 {}", millis(&last["p50_ms"])),
            format!("p99 {}", millis(&last["p99_ms"])),
            format!("flags {}", shown(&self.status["watch"]["flags"])),
        ];
        let mut lines = vec![cut(&first, width)];
        if self.status["mode"] == "observe" {
            lines.push(cut(&observed(&self.status["observed"]), width));
        }
        lines.extend(filled(&pieces, width));
        for notice in self.status["notices"].as_array().into_iter().flatten() {
            lines.extend(notice::lines(notice, width).into_iter().map(|line| cut(&line, width)));
        }
        lines
    }

    /// The last minutes, one character a second.
    fn charts(&self, width: usize) -> Vec<String> {
        let chart = |label: &str, name: &str, colour: &str| {
            let room = width.saturating_sub(22).min(240);
            let from = self.samples.len().saturating_sub(room);
            let values: Vec<f64> = self.samples[from..].iter().map(|one| one[name].as_f64().unwrap_or(0.0)).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            cut(&format!("{label:>9} {colour}{}{PLAIN} {DIM}to {most:.0}{PLAIN}", spark(&values, most)), width)
        };
        vec![chart("admitted", "admitted", GREEN), chart("refused", "refused", RED), chart("p99 ms", "p99_ms", YELLOW)]
    }

    fn list(&self, width: usize, room: usize) -> Vec<String> {
        let shown = self.shown();
        let columns = columns::fitting(width);
        let heads = format!("{DIM}{}{PLAIN}", columns::heads(&columns, &self.class));
        let mut lines = vec![cut(&heads, width)];
        let selected = self.selected();
        let rows = room.saturating_sub(1).max(1);
        let first = selected.saturating_sub(rows - 1);
        for (place, caller) in shown.iter().enumerate().skip(first).take(rows) {
            let line = columns::row(&columns, caller);
            let line = cut(&line, width);
            lines.push(if place == selected { format!("{INVERSE}{line}{PLAIN}") } else { line });
        }
        if shown.is_empty() {
            let nobody = if self.filter.is_empty() { "nobody yet" } else { "nobody by that name" };
            lines.push(cut(&format!("{DIM}{nobody}{PLAIN}"), width));
        }
        lines
    }

    /// One caller's own page.
    fn page(&self, width: usize) -> Vec<String> {
        let key = self.opened.as_deref().unwrap_or_default();
        let mut lines =
            vec![cut(&format!("{BOLD}{}{PLAIN}  {DIM}{}{PLAIN}", harmless(key), self.class), width), String::new()];
        let Some(detail) = &self.detail else { return lines };
        if let Some(until) = detail["exempt_until"].as_str() {
            lines.push(cut(&format!("exempt until {}", harmless(until)), width));
        }
        for rule in detail["rules"].as_array().into_iter().flatten() {
            let text = |name: &str| harmless(rule[name].as_str().unwrap_or("-"));
            let decision = text("decision");
            let colour = match &*decision {
                "admit" => GREEN,
                "hold" => YELLOW,
                _ => RED,
            };
            let line = format!(
                "{:<20} {colour}{decision:<7}{PLAIN} {:<13} left {:>6}  level {}  room in {} ms, all again in {} ms",
                text("rule"),
                text("reason"),
                shown(&rule["remaining"]),
                shown(&rule["level"]),
                shown(&rule["reset_ms"]),
                shown(&rule["clear_ms"])
            );
            lines.push(cut(&line, width));
        }
        if detail["rules"].as_array().is_none_or(Vec::is_empty) {
            lines.push(cut("no rule tells callers apart this way: the fair queue alone decides", width));
        }
        let bucket = &detail["bucket"];
        if bucket.is_object() {
            lines.push(String::new());
            for (label, name) in [
                ("requests", "requests"),
                ("held", "held"),
                ("refused", "refused"),
                ("CPU time [ms]", "cpu_ms"),
                ("first seen", "first_seen"),
                ("last seen", "last_seen"),
            ] {
                lines.push(cut(&format!("{label:>16}  {}", shown(&bucket[name])), width));
            }
        }
        lines
    }

    fn footer(&self, width: usize) -> String {
        let text = if let Some(trouble) = &self.trouble {
            format!("{RED}{trouble}{PLAIN}")
        } else if self.typing {
            format!("search: {}_  (enter keeps it, esc drops it)", harmless(&self.filter))
        } else if self.is_helping {
            "any key: back".to_owned()
        } else if self.opened.is_some() {
            "esc back  q back".to_owned()
        } else {
            let filter = if self.filter.is_empty() { String::new() } else { format!("  [{}]", harmless(&self.filter)) };
            format!(
                "{DIM}q quit  tab class  c/w/r/x/l by {}  / search  enter open  ? help{PLAIN}{filter}",
                self.order.name()
            )
        };
        cut(&text, width)
    }
}

impl Order {
    fn compare(self, a: &Caller, b: &Caller) -> Ordering {
        let by = match self {
            Self::Cpu => b.cpu.total_cmp(&a.cpu),
            Self::Wait => b.wait_secs.total_cmp(&a.wait_secs),
            Self::Requests => b.requests_per_sec.total_cmp(&a.requests_per_sec),
            Self::Refused => b.refused.cmp(&a.refused),
            Self::Last => a.last_secs.total_cmp(&b.last_secs),
        };
        by.then_with(|| a.last_secs.total_cmp(&b.last_secs)).then_with(|| a.title.cmp(&b.title))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wait => "wait",
            Self::Requests => "requests",
            Self::Refused => "refused",
            Self::Last => "last seen",
        }
    }
}

/// A value of an answer, whatever it is: whoever answers may be no gate.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => harmless(text),
        other => harmless(&other.to_string()),
    }
}

/// What a gate that only observes would have done, and to whom.
pub(super) fn observed(observed: &Value) -> String {
    let requests = observed["requests"].as_f64().unwrap_or(0.0).max(1.0);
    let percent = |name: &str| observed[name].as_f64().unwrap_or(0.0) / requests * 100.0;
    let keys = observed["clients"].as_array().into_iter().flatten().filter_map(|client| client["key"].as_str());
    let clients: Vec<_> = keys.map(harmless).collect();
    let colon = if clients.is_empty() { "" } else { ": " };
    let (held, refused, clients) = (percent("would_hold"), percent("would_refuse"), clients.join(", "));
    format!("observing only: would have held {held:.1} %, refused {refused:.1} %{colon}{clients}")
}

fn millis(value: &Value) -> String {
    value.as_f64().map_or_else(
        || "-".to_owned(),
        |ms| {
            if ms < 10.0 {
                format!("{ms:.1} ms")
            } else if ms < 10_000.0 {
                format!("{ms:.0} ms")
            } else {
                format!("{:.0} s", ms / 1000.0)
            }
        },
    )
}

/// Pieces side by side, on as few lines as there is room for.
fn filled(pieces: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if room_taken(line) + 2 + room_taken(piece) <= width => *line += &format!("  {piece}"),
            _ => lines.push(cut(piece, width)),
        }
    }
    lines
}

/// How much room a line takes. Colours take none.
fn room_taken(line: &str) -> usize {
    let (mut taken, mut is_colour) = (0, false);
    for c in line.chars() {
        match (is_colour, c) {
            (_, '\x1b') => is_colour = true,
            (true, c) => is_colour = !c.is_ascii_alphabetic(),
            (false, c) => taken += c.width().unwrap_or(0),
        }
    }
    taken
}

/// Values as a row of bars.
fn spark(values: &[f64], most: f64) -> String {
    const BARS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let bar = |value: &f64| if most > 0.0 && *value > 0.0 { BARS[((value / most * 7.0) as usize).min(7)] } else { ' ' };
    values.iter().map(bar).collect()
}

/// As much of a line as fits. Colours take no room.
fn cut(line: &str, width: usize) -> String {
    let (mut out, mut used, mut coloured) = (String::new(), 0, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            coloured = true;
            out.push(c);
            for c in chars.by_ref() {
                out.push(c);
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
            continue;
        }
        let wide = c.width().unwrap_or(0);
        if used + wide > width {
            break;
        }
        used += wide;
        out.push(c);
    }
    if coloured {
        out.push_str(PLAIN);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view() -> View {
        let mut view = View::new("127.0.0.1:8889", "ip/32");
        let bucket = |key: &str, cpu: f64, refused: u64| json!({ "key": key, "cpu_per_second": cpu, "refused": refused, "share": cpu, "rules": [] });
        let buckets = json!({ "classes": ["ip/32", "ip/24"], "buckets": [bucket("calm", 0.1, 90), bucket("crawler\x1b[2J", 0.9, 1)] });
        let history = json!({ "samples": [{ "admitted": 5.0, "refused": 1.0, "p99_ms": 12.0, "waiting": 2 }] });
        view.take(&json!({ "band": { "name": "critical", "sustained_ms": 300 } }), &history, &buckets, None);
        view
    }

    fn text(lines: &[String]) -> String {
        lines.join("\n")
    }

    #[test]
    fn who_spends_most_is_on_top_and_other_orders_are_a_key_away() {
        let mut view = view();
        let place = |view: &View, name: &str| view.lines(100, 20).iter().position(|line| line.contains(name)).unwrap();
        assert!(place(&view, "crawler") < place(&view, "calm"));
        view.press(Key::Char('x'));
        assert!(place(&view, "calm") < place(&view, "crawler"));
        assert!(text(&view.lines(100, 20)).contains("critical"));
    }

    #[test]
    fn a_screen_of_any_size_is_filled_and_not_overrun() {
        let (mut nobody, mut page) = (view(), view());
        nobody.filter = "somebody else".to_owned();
        page.press(Key::Enter);
        page.detail = Some(json!({ "exempt_until": "2026-11-15T12:00:00.000000Z", "rules": [] }));
        for view in [view(), nobody, page] {
            for (width, height) in [(20, 5), (20, 14), (40, 10), (80, 5), (80, 24), (300, 90)] {
                let lines = view.lines(width, height);
                assert_eq!(lines.len(), height);
                for line in &lines {
                    let visible = room_taken(line);
                    assert!(visible <= width, "{width}: {line:?}");
                }
            }
        }
    }

    #[test]
    fn a_caller_is_seen_on_a_screen_of_any_size() {
        for (width, height) in [(20, 5), (80, 5), (20, 14), (20, 16), (40, 10), (80, 24)] {
            assert!(text(&view().lines(width, height)).contains("crawler"), "{width}x{height}");
        }
    }

    #[test]
    fn whoever_was_chosen_stays_chosen_when_the_list_changes() {
        let chosen = |view: &View| {
            let lines = view.lines(80, 24);
            let line = lines.iter().find(|line| line.contains(INVERSE)).unwrap();
            ["calm", "crawler"].into_iter().find(|name| line.contains(name)).unwrap()
        };
        let mut view = view();
        assert_eq!(chosen(&view), "crawler");
        view.press(Key::Char('x'));
        assert_eq!(chosen(&view), "calm", "nobody was chosen: whoever is on top is marked");
        view.press(Key::Down);
        assert_eq!(chosen(&view), "crawler");
        view.press(Key::Char('c'));
        assert_eq!(chosen(&view), "crawler");
        view.press(Key::Enter);
        assert_eq!(view.opened(), Some("crawler\x1b[2J"));
        view.press(Key::Escape);
        view.take(&json!({}), &json!({}), &json!({ "buckets": [{ "key": "calm" }] }), None);
        assert_eq!(chosen(&view), "calm", "who has left is marked by its place");
    }

    #[test]
    fn names_do_not_drive_the_terminal() {
        assert!(!text(&view().lines(200, 30)).contains("\x1b[2J"));
    }

    #[test]
    fn keys_search_open_and_leave() {
        let mut view = view();
        for key in [Key::Char('/'), Key::Char('c'), Key::Char('a'), Key::Char('l'), Key::Enter] {
            assert_eq!(view.press(key), Asked::Nothing);
        }
        assert_eq!(view.shown().len(), 1);
        assert_eq!(view.press(Key::Enter), Asked::Figures);
        assert_eq!(view.opened(), Some("calm"));
        assert_eq!(view.press(Key::Char('q')), Asked::Nothing);
        assert_eq!((view.opened(), view.shown().len()), (None, 2));
        assert_eq!(view.press(Key::Tab), Asked::Figures);
        assert_eq!(view.class(), "ip/24");
        assert_eq!(view.press(Key::Down), Asked::Nothing);
        assert_eq!(view.press(Key::Char('q')), Asked::Leave);
        assert_eq!(view.press(Key::Interrupt), Asked::Leave);
    }
}

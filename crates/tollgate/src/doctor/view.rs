//! The live view of the doctor: its state, which API responses and key presses change, and its lines on the screen. It
//! accesses neither the terminal nor the network.

use serde_json::Value;

use super::columns;
use super::help;
use super::key_page;
use super::key_row::KeyRow;
use super::keyboard::KeyPress;
use super::notice;
use crate::colours::{BARS, BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::observe_summary;
use crate::terminal_text::{self, cut};

const INVERSE: &str = "\x1b[7m";

/// The value of `--class` for which the gate selects the class in which the load is concentrated.
pub(super) const AUTO: &str = "auto";

/// Least lines of the list: the header and one key.
const LIST_LINES_MIN: usize = 2;
/// Charts are shown only if the list has at least this many lines besides them.
const LIST_LINES_WITH_CHARTS_MIN: usize = 6;

/// Effect of a key press on the main loop. Of several key presses, the effect that comes last here counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyEffect {
    /// Redraw.
    Nothing,
    /// Request data at once, because others are shown now.
    Refresh,
    /// Quit.
    Leave,
}

/// A sort order: the key that selects it, its name, and the value by which rows ascend.
type SortOrder = (char, &'static str, fn(&KeyRow) -> f64);

const ORDERS: [SortOrder; 5] = [
    ('c', "cpu", |row| -row.cpu),
    ('w', "wait", |row| -row.wait_secs),
    ('r', "requests", |row| -row.requests_per_sec),
    ('x', "refused", |row| -(row.refused as f64)),
    ('l', "last seen", |row| row.last_secs),
];

/// State of the view.
#[derive(Default)]
pub(super) struct View {
    /// Host and port of the gate.
    host: String,
    /// Class of the shown keys.
    pub(crate) class: String,
    /// All classes that the gate can list.
    classes: Vec<String>,
    /// Response of `/api/v1/status`.
    status: Value,
    /// Samples of `/api/v1/history`, one per second.
    samples: Vec<Value>,
    /// All rows of the list, before search and sorting.
    rows: Vec<KeyRow>,
    /// The index of the sort order in [`ORDERS`].
    order: usize,
    /// Search text: only rows that contain it are shown.
    filter: String,
    /// Whether the search text is being typed.
    typing: bool,
    /// The selected key. `None` until one is selected; the first row is highlighted then.
    chosen: Option<String>,
    /// Row of the selected key when it was last in the list.
    last_row: usize,
    /// The key whose page is open, instead of the list.
    opened: Option<String>,
    /// Response of `/api/v1/key` for the opened key.
    detail: Option<Value>,
    /// Whether the help screen is open.
    is_helping: bool,
    /// Why the last request failed.
    trouble: Option<String>,
}

impl View {
    pub(super) fn new(host: &str, class: &str) -> Self {
        Self { host: terminal_text::escape(host), class: class.to_owned(), ..Self::default() }
    }

    /// The key whose page is open.
    pub(super) fn opened(&self) -> Option<&str> {
        self.opened.as_deref()
    }

    /// Applies API responses.
    pub(super) fn take(&mut self, status: &Value, history: &Value, buckets: &Value, detail: Option<Value>) {
        self.trouble = None;
        self.status = status.clone();
        self.samples = history["samples"].as_array().cloned().unwrap_or_default();
        let classes = buckets["classes"].as_array().into_iter().flatten();
        self.classes = classes.filter_map(|class| class.as_str().map(str::to_owned)).collect();
        if let (AUTO, Some(class)) = (&*self.class, buckets["class"].as_str()) {
            self.class = class.to_owned();
        }
        self.rows = KeyRow::all(&buckets["buckets"], &status["mode"]);
        self.last_row = self.selected();
        self.detail = detail;
    }

    /// Shows why a request failed, until the next one succeeds.
    pub(super) fn trouble(&mut self, text: String) {
        self.trouble = Some(terminal_text::escape(&text));
    }

    /// Handles a key press.
    pub(super) fn press(&mut self, key: KeyPress) -> KeyEffect {
        if key == KeyPress::Interrupt {
            return KeyEffect::Leave;
        }
        if self.typing {
            self.type_filter(key);
            return KeyEffect::Nothing;
        }
        if self.is_helping || key == KeyPress::Char('?') {
            self.is_helping = !self.is_helping;
            return KeyEffect::Nothing;
        }
        match key {
            KeyPress::Char('q') if self.opened.is_none() => return KeyEffect::Leave,
            KeyPress::Escape | KeyPress::Char('q') | KeyPress::Backspace => {
                (self.opened, self.detail) = (None, None);
                self.filter.clear();
            }
            KeyPress::Enter => {
                self.choose(self.selected());
                self.opened.clone_from(&self.chosen);
                return KeyEffect::Refresh;
            }
            KeyPress::Char('/') => {
                self.typing = true;
                self.filter.clear();
            }
            KeyPress::Tab => return self.turn(1),
            KeyPress::BackTab => return self.turn(self.classes.len().saturating_sub(1)),
            KeyPress::Up | KeyPress::Char('k') => self.choose(self.selected().saturating_sub(1)),
            KeyPress::Down | KeyPress::Char('j') => self.choose(self.selected() + 1),
            KeyPress::PageUp => self.choose(self.selected().saturating_sub(10)),
            KeyPress::PageDown => self.choose(self.selected() + 10),
            KeyPress::Char(key) => {
                self.order = ORDERS.iter().position(|(known, ..)| *known == key).unwrap_or(self.order);
            }
            KeyPress::Interrupt => {}
        }
        KeyEffect::Nothing
    }

    fn type_filter(&mut self, key: KeyPress) {
        match key {
            KeyPress::Char(c) if self.filter.len() < 100 => self.filter.push(c),
            KeyPress::Backspace => drop(self.filter.pop()),
            KeyPress::Enter => self.typing = false,
            KeyPress::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        (self.chosen, self.last_row) = (None, 0);
    }

    /// Selects the class that is `steps` after the current one; the first one follows the last.
    fn turn(&mut self, steps: usize) -> KeyEffect {
        if self.classes.is_empty() {
            return KeyEffect::Nothing;
        }
        let index = self.classes.iter().position(|class| *class == self.class).unwrap_or(0);
        self.class = self.classes[(index + steps) % self.classes.len()].clone();
        (self.chosen, self.last_row, self.opened) = (None, 0, None);
        KeyEffect::Refresh
    }

    /// Selects the key in this row, or in the last row if there are fewer.
    fn choose(&mut self, index: usize) {
        let shown = self.shown();
        let index = index.min(shown.len().saturating_sub(1));
        let chosen = shown.get(index).map(|row| row.key.clone());
        (self.chosen, self.last_row) = (chosen, index);
    }

    /// Row of the selected key; its last row if it left the list.
    fn selected(&self) -> usize {
        let shown = self.shown();
        let chosen = self.chosen.as_ref().and_then(|key| shown.iter().position(|row| row.key == *key));
        chosen.unwrap_or(self.last_row).min(shown.len().saturating_sub(1))
    }

    /// Rows that match the search, sorted.
    fn shown(&self) -> Vec<&KeyRow> {
        let wanted = self.filter.to_lowercase();
        let mut shown: Vec<_> = self.rows.iter().filter(|row| row.title.to_lowercase().contains(&wanted)).collect();
        let (_, _, value) = ORDERS[self.order];
        shown.sort_by(|a, b| {
            let by_value = value(a).total_cmp(&value(b));
            by_value.then_with(|| a.last_secs.total_cmp(&b.last_secs)).then_with(|| a.title.cmp(&b.title))
        });
        shown
    }

    /// All lines for a screen of this size.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut lines = self.header(width);
        if self.is_helping {
            // The help fits a screen of 24 lines.
            lines.truncate(1);
        }
        // The list is the purpose of the view, so its header and one row fit on any screen.
        lines.truncate(height.saturating_sub(LIST_LINES_MIN + 1).max(1));
        let charts = if self.is_helping { Vec::new() } else { self.charts(width) };
        if height >= 14 && lines.len() + charts.len() + LIST_LINES_WITH_CHARTS_MIN < height {
            lines.extend(charts);
        }
        let room = height.saturating_sub(lines.len() + 1);
        let body = match &self.opened {
            _ if self.is_helping => help::lines(width).iter().map(|line| cut(line, width)).collect(),
            Some(key) => key_page::lines(key, &self.class, self.detail.as_ref(), width),
            None => self.list(width, room),
        };
        lines.extend(body.into_iter().take(room));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.footer(width));
        lines.truncate(height);
        lines
    }

    fn header(&self, width: usize) -> Vec<String> {
        let band = terminal_text::escape(self.status["band"]["name"].as_str().unwrap_or("-"));
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
            format!("in flight {}/{}", shown(&requests["in_flight"]), shown(&requests["in_flight_max"])),
            format!("waiting {}", shown(&last["waiting"])),
            format!("p50 {}", millis(&last["p50_ms"])),
            format!("p99 {}", millis(&last["p99_ms"])),
            format!("flags {}", shown(&self.status["watch"]["flags"])),
        ];
        let mut lines = vec![cut(&first, width)];
        if self.status["mode"] == "observe" {
            let summary = observe_summary::text(&self.status["observed"]);
            lines.extend(terminal_text::wrapped(&summary, width).into_iter().map(|line| cut(&line, width)));
        }
        lines.extend(filled(&pieces, width));
        for notice in self.status["notices"].as_array().into_iter().flatten() {
            lines.extend(notice::lines(notice, width).into_iter().map(|line| cut(&line, width)));
        }
        lines
    }

    /// Charts of the last minutes, one character per second.
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

    /// The list of keys in at most `room` lines. It is scrolled so that the selected key is visible.
    fn list(&self, width: usize, room: usize) -> Vec<String> {
        let shown = self.shown();
        let columns = columns::fitting(width, &shown);
        let heads = format!("{DIM}{}{PLAIN}", columns::heads(&columns, &terminal_text::escape(&self.class)));
        let mut lines = vec![cut(&heads, width)];
        let selected = self.selected();
        let rows = room.saturating_sub(1).max(1);
        let first = selected.saturating_sub(rows - 1);
        for (index, row) in shown.iter().enumerate().skip(first).take(rows) {
            let line = cut(&columns::row_line(&columns, row), width);
            lines.push(if index == selected { format!("{INVERSE}{line}{PLAIN}") } else { line });
        }
        if shown.is_empty() {
            let empty = if self.filter.is_empty() { "no requests yet" } else { "no match" };
            lines.push(cut(&format!("{DIM}{empty}{PLAIN}"), width));
        }
        lines
    }

    fn footer(&self, width: usize) -> String {
        let text = if let Some(trouble) = &self.trouble {
            format!("{RED}{trouble}{PLAIN}")
        } else if self.typing {
            format!("search: {}_  (enter: apply, esc: cancel)", terminal_text::escape(&self.filter))
        } else if self.is_helping {
            "any key: back".to_owned()
        } else if self.opened.is_some() {
            "esc back  q back".to_owned()
        } else {
            let filter = match &*self.filter {
                "" => String::new(),
                filter => format!("  [{}]", terminal_text::escape(filter)),
            };
            let (_, order, _) = ORDERS[self.order];
            format!("{DIM}q quit  tab class  c/w/r/x/l sort ({order})  / search  enter open  ? help{PLAIN}{filter}")
        };
        cut(&text, width)
    }
}

/// Text of a JSON value of any type, because the server may not be a gate.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => terminal_text::escape(text),
        other => terminal_text::escape(&other.to_string()),
    }
}

fn millis(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 10_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.0} s", ms / 1000.0),
    }
}

/// Joins pieces on as few lines as possible.
fn filled(pieces: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if terminal_text::width(line) + 2 + terminal_text::width(piece) <= width => {
                *line += &format!("  {piece}")
            }
            _ => lines.push(cut(piece, width)),
        }
    }
    lines
}

/// Values as a row of bars; `most` is the highest value.
fn spark(values: &[f64], most: f64) -> String {
    let height = |value: f64| if value > 0.0 { 1 + ((value / most * 7.0) as usize).min(7) } else { 0 };
    values.iter().map(|value| BARS[height(*value)]).collect()
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
    fn keys_are_sorted_by_cpu_time_and_other_orders_by_key_press() {
        let mut view = view();
        let line_of =
            |view: &View, name: &str| view.lines(100, 20).iter().position(|line| line.contains(name)).unwrap();
        assert!(line_of(&view, "crawler") < line_of(&view, "calm"));
        view.press(KeyPress::Char('x'));
        assert!(line_of(&view, "calm") < line_of(&view, "crawler"));
        assert!(text(&view.lines(100, 20)).contains("critical"));
    }

    #[test]
    fn lines_fit_a_screen_of_any_size() {
        let (mut empty, mut page) = (view(), view());
        empty.filter = "somebody else".to_owned();
        page.press(KeyPress::Enter);
        page.detail = Some(json!({ "exempt_until": "2026-11-15T12:00:00.000000Z", "rules": [] }));
        for view in [view(), empty, page] {
            for (width, height) in [(20, 5), (20, 14), (40, 10), (80, 5), (80, 24), (300, 90)] {
                let lines = view.lines(width, height);
                assert_eq!(lines.len(), height);
                for line in &lines {
                    let visible = terminal_text::width(line);
                    assert!(visible <= width, "{width}: {line:?}");
                }
            }
        }
    }

    #[test]
    fn a_key_is_visible_on_a_screen_of_any_size() {
        for (width, height) in [(20, 5), (80, 5), (20, 14), (20, 16), (40, 10), (80, 24)] {
            assert!(text(&view().lines(width, height)).contains("crawler"), "{width}x{height}");
        }
    }

    #[test]
    fn the_selected_key_stays_selected_when_the_list_changes() {
        let chosen = |view: &View| {
            let lines = view.lines(80, 24);
            let line = lines.iter().find(|line| line.contains(INVERSE)).unwrap();
            ["calm", "crawler"].into_iter().find(|name| line.contains(name)).unwrap()
        };
        let mut view = view();
        assert_eq!(chosen(&view), "crawler");
        view.press(KeyPress::Char('x'));
        assert_eq!(chosen(&view), "calm", "without a selection the first row is highlighted");
        view.press(KeyPress::Down);
        assert_eq!(chosen(&view), "crawler");
        view.press(KeyPress::Char('c'));
        assert_eq!(chosen(&view), "crawler");
        view.press(KeyPress::Enter);
        assert_eq!(view.opened(), Some("crawler\x1b[2J"));
        view.press(KeyPress::Escape);
        view.take(&json!({}), &json!({}), &json!({ "buckets": [{ "key": "calm" }] }), None);
        assert_eq!(chosen(&view), "calm", "a key that left the list keeps its row");
    }

    #[test]
    fn keys_cannot_control_the_terminal() {
        assert!(!text(&view().lines(200, 30)).contains("\x1b[2J"));
    }

    #[test]
    fn a_class_cannot_control_the_terminal() {
        let mut view = View::new("127.0.0.1:8889", AUTO);
        let hostile = "ip\x1b]0;title\x07\x1b[2J";
        view.take(&json!({}), &json!({}), &json!({ "class": hostile, "classes": [hostile], "buckets": [] }), None);
        let shown = text(&view.lines(200, 30));
        assert!(shown.contains(r"ip\x1b]0;title\x07\x1b[2J"), "{shown:?}");
        assert!(!shown.contains("\x1b]") && !shown.contains("\x1b[2J") && !shown.contains('\x07'), "{shown:?}");
    }

    #[test]
    fn key_presses_search_open_and_quit() {
        let mut view = view();
        for key in [KeyPress::Char('/'), KeyPress::Char('c'), KeyPress::Char('a'), KeyPress::Char('l'), KeyPress::Enter]
        {
            assert_eq!(view.press(key), KeyEffect::Nothing);
        }
        assert_eq!(view.shown().len(), 1);
        assert_eq!(view.press(KeyPress::Enter), KeyEffect::Refresh);
        assert_eq!(view.opened(), Some("calm"));
        assert_eq!(view.press(KeyPress::Char('q')), KeyEffect::Nothing);
        assert_eq!((view.opened(), view.shown().len()), (None, 2));
        assert_eq!(view.press(KeyPress::Tab), KeyEffect::Refresh);
        assert_eq!(view.class, "ip/24");
        assert_eq!(view.press(KeyPress::Down), KeyEffect::Nothing);
        assert_eq!(view.press(KeyPress::Char('q')), KeyEffect::Leave);
        assert_eq!(view.press(KeyPress::Interrupt), KeyEffect::Leave);
    }
}

//! What is wrong with a file: where, and what to write instead.
//!
//! A person who has made five mistakes wants to hear of five, not of one five times. So reading goes on after a fault, and the faults are
//! sorted and shown together. What the parser made of a line that is not TOML is a guess: nothing more is said about such a line.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::secret::{MASK, secrets, without};

/// More faults than this are only counted: a file of another kind has one on every line.
const SHOWN_MAX: usize = 100;
/// How many characters of a line are shown.
const SNIPPET_MAX: usize = 100;

/// One thing that is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The character within the line, from 1.
    pub(crate) column: usize,
    /// What is wrong and what to write instead.
    pub(crate) message: String,
    snippet: Option<Snippet>,
}

/// The part of the file that a fault is about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snippet {
    line: String,
    /// How many characters of `line` come before the fault.
    before: usize,
    /// How many characters the fault is about.
    length: usize,
}

/// Everything that is wrong with a file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    file: String,
    faults: Vec<Fault>,
    /// How many more there are that are not shown.
    more: usize,
    /// The faults of another file.
    next: Option<Box<Self>>,
}

impl Faults {
    /// A file that cannot be read at all. It has one fault, at its beginning, so that every fault has the same form.
    pub(crate) fn unreadable(file: impl Into<String>, message: impl Into<String>) -> Self {
        let fault = Fault { line: 1, column: 1, message: message.into(), snippet: None };
        Self { file: file.into(), faults: vec![fault], more: 0, next: None }
    }

    /// Faults at lines and columns of a file.
    pub(crate) fn at(file: &str, faults: impl IntoIterator<Item = (usize, usize, String)>) -> Self {
        let fault = |(line, column, message)| Fault { line, column, message, snippet: None };
        Self { file: file.to_owned(), faults: faults.into_iter().map(fault).collect(), more: 0, next: None }
    }

    /// The faults of several files, in their order.
    pub(crate) fn joined(before: Option<Self>, mut last: Self) -> Self {
        let Some(mut first) = before else { return last };
        last.next = None;
        let mut end = &mut first.next;
        while let Some(next) = end {
            end = &mut next.next;
        }
        *end = Some(Box::new(last));
        first
    }

    /// Each fault, in the order of the file.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(formatter, "{}:{}:{}: {}", self.file, fault.line, fault.column, fault.message)?;
            if let Some(Snippet { line, before, length }) = &fault.snippet {
                let gutter = " ".repeat(fault.line.to_string().len());
                writeln!(formatter, "  {} | {line}", fault.line)?;
                writeln!(formatter, "  {gutter} | {}{}", " ".repeat(*before), "^".repeat(*length))?;
            }
        }
        if self.more > 0 {
            writeln!(formatter, "{}: and {} more", self.file, self.more)?;
        }
        self.next.as_ref().map_or(Ok(()), |next| next.fmt(formatter))
    }
}

/// A fault whose place is known by bytes.
struct Raw {
    span: Range<usize>,
    message: String,
    syntax: bool,
}

/// Collects faults while a file is read.
#[derive(Default)]
pub(super) struct Collector {
    raw: Vec<Raw>,
    /// Whether something of the file is not TOML.
    torn: bool,
    /// The directory of the file.
    directory: PathBuf,
}

impl Collector {
    /// A collector for the file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        Self { directory: path.parent().map(Path::to_owned).unwrap_or_default(), ..Self::default() }
    }

    /// A path that the file has: relative ones are relative to the directory of the file, whatever the working directory is.
    pub(super) fn resolved(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    /// The value at `span` is wrong.
    pub(super) fn fault(&mut self, span: &Range<usize>, message: impl Into<String>) {
        self.raw.push(Raw { span: span.clone(), message: message.into(), syntax: false });
    }

    /// What is at `span` is not TOML.
    pub(super) fn syntax(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.torn = true;
        self.raw.push(Raw { span, message: message.into(), syntax: true });
    }

    /// Something that should be near `span` is not there. After a line that is no TOML nobody knows whether it is.
    pub(super) fn missing(&mut self, span: &Range<usize>, message: impl Into<String>) {
        if !self.torn {
            self.fault(span, message);
        }
    }

    /// Whether nothing is wrong.
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The faults with their lines and columns.
    pub(super) fn place(mut self, file: &str, text: &str) -> Faults {
        let lines = Lines::of(text);
        self.raw.sort_by_key(|raw| (!raw.syntax, raw.span.start));
        // Lines of which nothing more is said, in order and apart: those that are no TOML, and what a torn header leaves homeless.
        let mut spoilt: Vec<Range<usize>> = Vec::new();
        self.raw.retain(|raw| {
            let line = lines.line(raw.span.start);
            let before = spoilt.partition_point(|range| range.start <= line);
            let last = before.checked_sub(1).map(|index| &spoilt[index]);
            if raw.syntax {
                let first_of_line = last.is_none_or(|last| last.start != line);
                spoilt.extend(first_of_line.then(|| lines.spoilt_by(line)));
                first_of_line
            } else {
                last.is_none_or(|last| !last.contains(&line))
            }
        });
        self.raw.sort_by_key(|raw| raw.span.start);
        // A legacy limit can be two rules, with the same to be said about both.
        self.raw.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        let more = self.raw.len().saturating_sub(SHOWN_MAX);
        let faults = self.raw.into_iter().take(SHOWN_MAX).map(|raw| lines.fault(raw)).collect();
        Faults { file: file.to_string(), faults, more, next: None }
    }
}

/// Where the lines of a text begin.
struct Lines<'text> {
    text: &'text str,
    starts: Vec<usize>,
}

impl<'text> Lines<'text> {
    fn of(text: &'text str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The line, from 0, that a byte is in.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at).saturating_sub(1)
    }

    /// The lines about which nothing is known when `line` is no TOML: that line, and if it was to be a header all up to the next header.
    fn spoilt_by(&self, line: usize) -> Range<usize> {
        let is_header = |line: usize| self.text[self.starts[line]..].trim_start_matches([' ', '\t']).starts_with('[');
        if !is_header(line) {
            return line..line + 1;
        }
        let next = (line + 1..self.starts.len()).find(|&line| is_header(line));
        line..next.unwrap_or(self.starts.len())
    }

    fn fault(&self, raw: Raw) -> Fault {
        let at = self.text.floor_char_boundary(raw.span.start);
        let end = self.text.floor_char_boundary(raw.span.end);
        let line = self.line(at);
        let start = self.starts[line];
        let before = self.text[start..at].chars().count();
        let whole = self.text[start..].lines().next().unwrap_or_default();
        let length = self.text[at..end.max(at)].lines().next().unwrap_or_default().len();
        let snippet = Snippet::of(whole, &(at - start..at - start + length));
        Fault { line: line + 1, column: before + 1, message: raw.message, snippet }
    }
}

impl Snippet {
    /// The line, or the part of a long one that the fault at these bytes is in, fit for a terminal and for those who are to know no passwords.
    fn of(line: &str, place: &Range<usize>) -> Option<Self> {
        let secrets = secrets(line);
        let around = |at: usize| secrets.iter().find(|secret| secret.start < at && at < secret.end);
        // How many characters are shown before a byte that is in no secret.
        let shown_before = |at: usize| {
            let hidden = secrets.iter().filter(|secret| secret.end <= at);
            let length = |secret: &Range<usize>| line[secret.clone()].chars().count();
            hidden.fold(line[..at].chars().count(), |count, secret| count + MASK.len() - length(secret))
        };
        let start = around(place.start).map_or(place.start, |secret| secret.start).min(line.len());
        let end = around(place.end).map_or(place.end, |secret| secret.end).clamp(start, line.len());
        let before = shown_before(start);
        let length = shown_before(end) - before;
        let line = without(line, &secrets);
        let skipped = if before < SNIPPET_MAX * 3 / 4 { 0 } else { before - SNIPPET_MAX / 2 };
        let part: String =
            line.chars().skip(skipped).take(SNIPPET_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let width = part.chars().count();
        let before = before - skipped;
        (!part.trim().is_empty()).then(|| Self {
            line: part,
            before,
            length: length.min(width.saturating_sub(before)).max(1),
        })
    }
}

/// A piece of the file inside a message: in backticks, short, and without secrets or characters that would disturb a terminal.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let text = without(text, &secrets(text));
    let mut shown: String = text
        .chars()
        .take(LONGEST)
        .flat_map(|c| {
            if c.is_control() { c.escape_default().to_string() } else { c.to_string() }.chars().collect::<Vec<_>>()
        })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}

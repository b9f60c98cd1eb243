//! Errors of a settings file: position, message and the line itself.
//!
//! The parser continues after an error: [`ErrorCollector`] collects all errors of a file, and [`ConfigErrors`] shows
//! them together, in the order of the file. The result of the TOML parser for a line with a syntax error is a guess, so
//! no further error of that line is reported.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::listeners::Listener;
use super::secret::{MASK, secrets, without};

/// Maximum number of errors that are shown; the others are counted. A file of another format has one on every line.
const SHOWN_MAX: usize = 100;
/// Maximum length of a shown line, in characters. A longer line is cut around the error.
const SNIPPET_MAX: usize = 100;

/// One error of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The character within the line, from 1.
    pub(crate) column: usize,
    /// The problem, and the correct syntax or value.
    pub(crate) message: String,
    snippet: Option<Snippet>,
}

/// The line of an error, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snippet {
    line: String,
    /// Number of characters of `line` before the error.
    before: usize,
    /// Length of the error, in characters.
    length: usize,
}

/// All errors of one or several files, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigErrors(pub(super) Vec<FileErrors>);

/// All errors of a file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileErrors {
    file: String,
    errors: Vec<ConfigError>,
    /// Number of errors beyond [`SHOWN_MAX`].
    more: usize,
}

impl ConfigErrors {
    /// An error of a whole file, such as one that cannot be read. Its position is the start of the file, so that all
    /// errors have one format.
    pub(crate) fn unreadable(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self::at(file, [(1, 1, message.into())])
    }

    /// Errors of a file, each as line, column and message. They are shown without the text of the line.
    pub(crate) fn at(file: impl Into<String>, errors: impl IntoIterator<Item = (usize, usize, String)>) -> Self {
        let error = |(line, column, message)| ConfigError { line, column, message, snippet: None };
        Self(vec![FileErrors { file: file.into(), errors: errors.into_iter().map(error).collect(), more: 0 }])
    }

    /// Each error, in the order of the file.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter().flat_map(|file| &file.errors)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FileErrors { file, errors, more } in &self.0 {
            for error in errors {
                writeln!(formatter, "{file}:{}:{}: {}", error.line, error.column, error.message)?;
                if let Some(Snippet { line, before, length }) = &error.snippet {
                    let gutter = " ".repeat(error.line.to_string().len());
                    writeln!(formatter, "  {} | {line}", error.line)?;
                    writeln!(formatter, "  {gutter} | {}{}", " ".repeat(*before), "^".repeat(*length))?;
                }
            }
            if *more > 0 {
                writeln!(formatter, "{file}: and {more} more")?;
            }
        }
        Ok(())
    }
}

/// An error before its line and column are known.
struct RawError {
    /// The position in the text of the file, in bytes.
    span: Range<usize>,
    message: String,
    /// Whether it is an error of TOML syntax. Other errors of the same line are then dropped.
    is_syntax: bool,
}

/// Collects errors while a file is parsed, and the few facts about the whole file that checks of single values need.
#[derive(Default)]
pub(crate) struct ErrorCollector {
    raw: Vec<RawError>,
    /// Whether the file has a TOML syntax error.
    has_syntax_error: bool,
    /// The directory of the file: relative paths in the file start there.
    directory: PathBuf,
    /// Whether the file has a `[redis]` table.
    pub(super) has_redis: bool,
    /// All listening addresses that were read so far, to report two that are equal.
    pub(super) listeners: Vec<Listener>,
}

impl ErrorCollector {
    /// A collector for the file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        Self { directory: path.parent().map(Path::to_owned).unwrap_or_default(), ..Self::default() }
    }

    /// Resolves a path in the file. A relative path is relative to the directory of the file.
    pub(super) fn resolved(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    /// Reports an invalid value at `span`.
    pub(super) fn report(&mut self, span: &Range<usize>, message: impl Into<String>) {
        self.raw.push(RawError { span: span.clone(), message: message.into(), is_syntax: false });
    }

    /// Reports an invalid value at `span`. Always returns `None`.
    pub(super) fn refuse<T>(&mut self, span: &Range<usize>, message: impl Into<String>) -> Option<T> {
        self.report(span, message);
        None
    }

    /// Reports a TOML syntax error at `span`.
    pub(super) fn syntax(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.has_syntax_error = true;
        self.raw.push(RawError { span, message: message.into(), is_syntax: true });
    }

    /// Reports an absent key near `span`, unless the file has a syntax error: the key may be in the line with that
    /// error.
    pub(super) fn missing(&mut self, span: &Range<usize>, message: impl Into<String>) {
        if !self.has_syntax_error {
            self.report(span, message);
        }
    }

    /// Reports that the value of `subject` at `span` needs Redis, unless the file has a `[redis]` table.
    pub(super) fn need_redis(&mut self, span: &Range<usize>, subject: &str) {
        if !self.has_redis {
            let message = format!("{subject} needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there");
            self.missing(span, message);
        }
    }

    /// Adds the errors of `others` before the errors collected so far. Of two errors at one position, the one that
    /// comes first here is shown first.
    pub(super) fn prepend(&mut self, others: Self) {
        self.raw.splice(0..0, others.raw);
    }

    /// Whether no error was reported.
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The errors with lines and columns instead of byte positions. Drops those that only follow from a syntax error.
    pub(super) fn place(mut self, file: &str, text: &str) -> ConfigErrors {
        let lines = Lines::of(text);
        self.raw.sort_by_key(|raw| (!raw.is_syntax, raw.span.start));
        // Ranges of lines whose other errors are dropped, sorted and disjoint: lines with a syntax error, and all lines
        // below a header with one, because their table is unknown.
        let mut unreliable: Vec<Range<usize>> = Vec::new();
        self.raw.retain(|raw| {
            let line = lines.line(raw.span.start);
            let before = unreliable.partition_point(|range| range.start <= line);
            let last = before.checked_sub(1).map(|index| &unreliable[index]);
            if raw.is_syntax {
                let first_of_line = last.is_none_or(|last| last.start != line);
                unreliable.extend(first_of_line.then(|| lines.unreliable_after(line)));
                first_of_line
            } else {
                last.is_none_or(|last| !last.contains(&line))
            }
        });
        self.raw.sort_by_key(|raw| raw.span.start);
        // A legacy limit can become two rules with the same error.
        self.raw.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        let more = self.raw.len().saturating_sub(SHOWN_MAX);
        let errors = self.raw.into_iter().take(SHOWN_MAX).map(|raw| lines.locate(raw)).collect();
        ConfigErrors(vec![FileErrors { file: file.to_string(), errors, more }])
    }
}

/// A text and the byte offsets of its lines.
struct Lines<'text> {
    text: &'text str,
    starts: Vec<usize>,
}

impl<'text> Lines<'text> {
    fn of(text: &'text str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The line that contains this byte, from 0.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at).saturating_sub(1)
    }

    /// The lines affected by a syntax error in `line`: that line, and if it is a header, all lines up to the next
    /// header.
    fn unreliable_after(&self, line: usize) -> Range<usize> {
        let is_header = |line: usize| self.text[self.starts[line]..].trim_start_matches([' ', '\t']).starts_with('[');
        if !is_header(line) {
            return line..line + 1;
        }
        let next = (line + 1..self.starts.len()).find(|&line| is_header(line));
        line..next.unwrap_or(self.starts.len())
    }

    fn locate(&self, raw: RawError) -> ConfigError {
        let at = self.text.floor_char_boundary(raw.span.start);
        let end = self.text.floor_char_boundary(raw.span.end);
        let line = self.line(at);
        let start = self.starts[line];
        let before = self.text[start..at].chars().count();
        let whole = self.text[start..].lines().next().unwrap_or_default();
        let length = self.text[at..end.max(at)].lines().next().unwrap_or_default().len();
        let snippet = Snippet::of(whole, &(at - start..at - start + length));
        ConfigError { line: line + 1, column: before + 1, message: raw.message, snippet }
    }
}

impl Snippet {
    /// The line with the error at the bytes `place`, without secrets and control characters, shortened to
    /// [`SNIPPET_MAX`]. None if nothing of the line is left to show.
    fn of(line: &str, place: &Range<usize>) -> Option<Self> {
        let secrets = secrets(line);
        let secret_around = |at: usize| secrets.iter().find(|secret| secret.start < at && at < secret.end);
        // Number of shown characters before this byte, which is not inside a secret.
        let shown_before = |at: usize| {
            let hidden = secrets.iter().filter(|secret| secret.end <= at);
            let length = |secret: &Range<usize>| line[secret.clone()].chars().count();
            hidden.fold(line[..at].chars().count(), |count, secret| count + MASK.len() - length(secret))
        };
        let start = secret_around(place.start).map_or(place.start, |secret| secret.start).min(line.len());
        let end = secret_around(place.end).map_or(place.end, |secret| secret.end).clamp(start, line.len());
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

/// Quotes a part of the file in a message: in backticks, shortened, without secrets and control characters.
pub(super) fn shown(text: &str) -> String {
    const LENGTH_MAX: usize = 60;
    let text = without(text, &secrets(text));
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let mut shown: String = text.chars().take(LENGTH_MAX).map(escaped).collect();
    if text.chars().nth(LENGTH_MAX).is_some() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}

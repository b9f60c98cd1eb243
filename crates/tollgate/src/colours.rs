//! Terminal colours and bars, for the commands `doctor`, `demo` and `replay`.

use std::io::IsTerminal;

/// A heading.
pub(crate) const BOLD: &str = "\x1b[1m";
/// Secondary text.
pub(crate) const DIM: &str = "\x1b[2m";
/// Refused requests, and long waits.
pub(crate) const RED: &str = "\x1b[31m";
/// Admitted requests.
pub(crate) const GREEN: &str = "\x1b[32m";
/// Held requests.
pub(crate) const YELLOW: &str = "\x1b[33m";
/// Text to type.
pub(crate) const CYAN: &str = "\x1b[36m";
/// The end of a colour.
pub(crate) const PLAIN: &str = "\x1b[0m";

/// Bars of a chart that is one line high, from nothing to the highest.
pub(crate) const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Colours text, or leaves it unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colours {
    /// Whether text is coloured.
    pub(crate) on: bool,
}

impl Colours {
    /// With colours if standard output is a terminal that supports them and NO_COLOR is not set.
    pub(crate) fn for_stdout() -> Self {
        let is_forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_supported = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { on: std::io::stdout().is_terminal() && is_supported && !is_forbidden }
    }

    /// The text in one of the colours above.
    pub(crate) fn paint(self, colour: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("{colour}{text}{PLAIN}") } else { text.to_string() }
    }
}

/// The text of these lines, without colours and without spaces at their ends.
pub(crate) fn without_colours(lines: Vec<String>) -> String {
    let colours = [BOLD, DIM, RED, GREEN, YELLOW, CYAN, PLAIN];
    let plain = |line: String| colours.iter().fold(line, |line, colour| line.replace(colour, ""));
    lines.into_iter().map(|line| plain(line).trim_end().to_owned() + "\n").collect()
}

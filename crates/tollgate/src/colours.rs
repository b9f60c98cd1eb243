//! Terminal colours.

use std::io::IsTerminal;

/// A heading.
pub(super) const BOLD: &str = "1";
/// Secondary text.
pub(super) const DIM: &str = "2";
/// Refused requests.
pub(super) const RED: &str = "31";
/// Admitted requests.
pub(super) const GREEN: &str = "32";
/// Held requests.
pub(super) const YELLOW: &str = "33";
/// Text to type.
pub(super) const CYAN: &str = "36";

/// Colours text, or leaves it unchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colours {
    on: bool,
}

impl Colours {
    /// With colours if standard output is a terminal that supports them and NO_COLOR is not set.
    pub(super) fn for_stdout() -> Self {
        let asked_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let can = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { on: std::io::stdout().is_terminal() && can && !asked_for_none }
    }

    /// Without colours.
    #[cfg(test)]
    pub(super) const fn none() -> Self {
        Self { on: false }
    }

    /// The text in one of the colours above.
    pub(super) fn paint(self, colour: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_string() }
    }
}

//! Terminal colours.

use std::io::IsTerminal;

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

    fn paint(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// A heading.
    pub(super) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Secondary text.
    pub(super) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Admitted requests.
    pub(super) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Held requests.
    pub(super) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Refused requests.
    pub(super) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Text to type.
    pub(super) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }
}

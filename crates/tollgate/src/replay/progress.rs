//! The progress bar of `tollgate replay` on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::input::Input;

/// Lines between updates of the bar.
const LINES_PER_STEP: u64 = 1 << 14;

/// A bar on standard error, or nothing if it would not be visible.
pub(super) struct ReplayProgress {
    bar: Option<ProgressBar>,
}

impl ReplayProgress {
    /// Creates the bar for an input. `is_wanted` is false if decisions are printed, which would mix with the bar.
    pub(super) fn new(input: &Input, is_wanted: bool) -> Self {
        if !is_wanted || !std::io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let bar = match input.bytes_total {
            Some(total) => ProgressBar::new(total).with_style(style("{bar:40} {percent:>3} %  {msg}  {eta} left")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes} read  {msg}")),
        };
        // Short inputs end before the bar would be shown.
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar: Some(bar) }
    }

    /// Updates the bar after this many lines.
    #[inline]
    pub(super) fn at(&self, lines: u64, input: &Input) {
        if let Some(bar) = &self.bar
            && lines.is_multiple_of(LINES_PER_STEP)
        {
            bar.set_position(input.position());
            bar.set_message(format!("{} lines", super::terminal_text::count(lines)));
        }
    }

    /// Removes the bar.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

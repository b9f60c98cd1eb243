//! How far we are, for a person who waits at a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::input::Input;

/// The bar is moved on after so many lines.
const LINES_PER_STEP: u64 = 1 << 14;

/// A bar on standard error, or nothing if nobody would see it.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For an input; `wanted` is whether nothing else is written to the terminal meanwhile.
    pub(super) fn new(input: &Input, wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let (_, total) = input.position();
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(style("{bar:40} {percent:>3} %  {msg}  {eta} left")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes} read  {msg}")),
        };
        // Short inputs are done before anybody could look.
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar: Some(bar) }
    }

    /// So many lines were read.
    #[inline]
    pub(super) fn at(&self, lines: u64, input: &Input) {
        if let Some(bar) = &self.bar
            && lines.is_multiple_of(LINES_PER_STEP)
        {
            bar.set_position(input.position().0);
            bar.set_message(format!("{} lines", super::shown::count(lines)));
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

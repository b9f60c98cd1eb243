//! The results of reloads of the settings, for metrics. An invalid file must stay visible, because the gate continues
//! with the old settings, which its operator believes to be replaced.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The results of all reloads.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    /// Reloads that took effect.
    pub(crate) done: AtomicU64,
    /// Reloads that changed nothing, because the file was invalid.
    pub(crate) failed: AtomicU64,
    /// Whether the last reload failed.
    pub(crate) is_stale: AtomicBool,
    /// The number of changed settings that take effect only after a restart, at the last reload that took effect.
    pub(crate) waiting: AtomicU64,
}

impl Reloads {
    /// Records a reload. `outcome` has the settings that take effect only after a restart, or the error.
    pub(crate) fn note(&self, outcome: &Result<Vec<&'static str>, String>) {
        let counter = if outcome.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Ok(waiting) = outcome {
            self.waiting.store(waiting.len() as u64, Ordering::Relaxed);
        }
        self.is_stale.store(outcome.is_err(), Ordering::Relaxed);
    }
}

//! The results of reloads. A refused file must stay visible: the gate goes on with old settings that its operator
//! believes to be replaced.

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
    /// Settings of the file that need a restart.
    pub(crate) waiting: AtomicU64,
}

impl Reloads {
    /// Records a reload, and the settings that need a restart.
    pub(crate) fn note(&self, outcome: &Result<Vec<&'static str>, String>) {
        let counter = if outcome.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Ok(waiting) = outcome {
            self.waiting.store(waiting.len() as u64, Ordering::Relaxed);
        }
        self.is_stale.store(outcome.is_err(), Ordering::Relaxed);
    }
}

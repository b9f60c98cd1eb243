//! The results of reloads. A refused file must stay visible: the gate goes on with old settings that its operator
//! believes to be replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

/// The results of all reloads.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    done: AtomicU64,
    failed: AtomicU64,
    faults: ArcSwapOption<String>,
    waiting: AtomicU64,
}

impl Reloads {
    /// Records a reload, and the settings that need a restart.
    pub(crate) fn note(&self, outcome: &Result<Vec<String>, String>) {
        let counter = if outcome.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Ok(waiting) = outcome {
            self.waiting.store(waiting.len() as u64, Ordering::Relaxed);
        }
        self.faults.store(outcome.as_ref().err().map(|faults| Arc::new(faults.clone())));
    }

    /// Reloads that took effect.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Reloads that changed nothing, because the file was invalid.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Settings of the file that need a restart.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The error of the last reload; none if it took effect.
    pub(crate) fn faults(&self) -> Option<Arc<String>> {
        self.faults.load_full()
    }
}

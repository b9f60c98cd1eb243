//! How reloads went: a file that was refused must not be forgotten in a log, since the gate goes on with settings that its operator takes for
//! replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

/// How reloads went so far.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    done: AtomicU64,
    failed: AtomicU64,
    faults: ArcSwapOption<String>,
    waiting: AtomicU64,
}

impl Reloads {
    /// Takes note of one, and of what of it waits for a new start.
    pub(crate) fn note(&self, outcome: &Result<Vec<String>, String>) {
        let counter = if outcome.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Ok(waiting) = outcome {
            self.waiting.store(waiting.len() as u64, Ordering::Relaxed);
        }
        self.faults.store(outcome.as_ref().err().map(|faults| Arc::new(faults.clone())));
    }

    /// How many took effect.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// How many changed nothing, because the file could not be used.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// How many settings of the file come into force only by a new start.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// What was wrong with the last one; nothing if it took effect.
    pub(crate) fn faults(&self) -> Option<Arc<String>> {
        self.faults.load_full()
    }
}

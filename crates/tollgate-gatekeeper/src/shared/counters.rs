//! Counters of the communication with the store, so that no fallback goes unnoticed.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Unanswered;
use crate::live_metrics::live_metrics;

live_metrics! {
    /// The live counters.
    pub(super) Counters,
    /// A snapshot of the counters. All fields but the last four count decisions.
    Counts {
        /// Decided by the store.
        answered: AtomicU64 => u64,
        /// Decided locally because the deadline had passed.
        late: AtomicU64 => u64,
        /// Decided locally without a call, because the store is down.
        down: AtomicU64 => u64,
        /// Decided locally because too many calls were waiting.
        busy: AtomicU64 => u64,
        /// Decided locally because the slot of a key has a value of other software.
        foreign: AtomicU64 => u64,
        /// Decided locally because the reply was invalid.
        garbled: AtomicU64 => u64,
        /// Decided locally because the store returned an error.
        failed: AtomicU64 => u64,
        /// Charged by the store and refunded, because the caller was gone or another part of a Cluster refused.
        given_back: AtomicU64 => u64,
        /// Settlements that could not be sent to the store.
        unsettled: AtomicU64 => u64,
        /// Connections made.
        connects: AtomicU64 => u64,
        /// Script calls sent.
        calls: AtomicU64 => u64,
        /// Pipelines sent.
        pipelines: AtomicU64 => u64,
    }
}

impl Counters {
    pub(super) fn unanswered(&self, why: Unanswered) {
        let counter = match why {
            Unanswered::Late => &self.late,
            Unanswered::Down => &self.down,
            Unanswered::Busy => &self.busy,
            Unanswered::Foreign => &self.foreign,
            Unanswered::Garbled => &self.garbled,
            Unanswered::Failed => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }
}

impl Counts {
    /// The decisions that were made locally, by reason.
    pub const fn fallbacks(&self) -> [(Unanswered, u64); 6] {
        [
            (Unanswered::Late, self.late),
            (Unanswered::Down, self.down),
            (Unanswered::Busy, self.busy),
            (Unanswered::Failed, self.failed),
            (Unanswered::Foreign, self.foreign),
            (Unanswered::Garbled, self.garbled),
        ]
    }

    /// The number of decisions that were made locally.
    pub const fn unanswered(&self) -> u64 {
        self.late + self.down + self.busy + self.foreign + self.garbled + self.failed
    }
}

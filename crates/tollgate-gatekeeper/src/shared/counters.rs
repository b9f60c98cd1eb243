//! Counters of the communication with the store, for metrics, so that operators notice when the store does not decide.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Unanswered;
use crate::live_metrics::live_metrics;

live_metrics! {
    /// The live counters.
    pub(super) Counters,
    /// A snapshot of the counters. The first seven count questions to the store by their result. Without an answer,
    /// this process decides, or refuses if a rule requires it.
    Counts {
        /// Decided by the store.
        answered: AtomicU64 => u64,
        /// Not answered before the deadline.
        late: AtomicU64 => u64,
        /// Not answered because the store is down, with or without a call.
        down: AtomicU64 => u64,
        /// Not asked because too many calls were waiting.
        busy: AtomicU64 => u64,
        /// Not answered because the slot of a key has a value of other software.
        foreign: AtomicU64 => u64,
        /// Not answered because the reply was invalid.
        garbled: AtomicU64 => u64,
        /// Not answered because the store returned an error.
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
    /// Counts a question that the store did not answer.
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
    /// The questions that the store did not answer, by reason.
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

    /// The number of questions that the store did not answer.
    pub const fn unanswered(&self) -> u64 {
        self.late + self.down + self.busy + self.foreign + self.garbled + self.failed
    }
}

//! Counters of the communication with the store, so that no fallback goes unnoticed.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Unanswered;

/// A monotonic counter.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that increases and decreases.
#[derive(Debug, Default)]
pub(super) struct Gauge(AtomicU64);

impl Gauge {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) answered: Counter,
    pub(super) late: Counter,
    pub(super) down: Counter,
    pub(super) busy: Counter,
    pub(super) foreign: Counter,
    pub(super) garbled: Counter,
    pub(super) failed: Counter,
    pub(super) given_back: Counter,
    pub(super) unsettled: Counter,
    pub(super) connects: Counter,
    pub(super) calls: Counter,
    pub(super) pipelines: Counter,
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
        counter.add(1);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            answered: self.answered.total(),
            late: self.late.total(),
            down: self.down.total(),
            busy: self.busy.total(),
            foreign: self.foreign.total(),
            garbled: self.garbled.total(),
            failed: self.failed.total(),
            given_back: self.given_back.total(),
            unsettled: self.unsettled.total(),
            connects: self.connects.total(),
            calls: self.calls.total(),
            pipelines: self.pipelines.total(),
        }
    }
}

/// The counters. All fields but the last four count decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decided by the store.
    pub answered: u64,
    /// Decided locally because the deadline had passed.
    pub late: u64,
    /// Decided locally without a call, because the store is down.
    pub down: u64,
    /// Decided locally because too many calls were waiting.
    pub busy: u64,
    /// Decided locally because the slot of a key has a value of other software.
    pub foreign: u64,
    /// Decided locally because the reply was invalid.
    pub garbled: u64,
    /// Decided locally because the store returned an error.
    pub failed: u64,
    /// Charged by the store and refunded, because the caller was gone or another part of a Cluster refused.
    pub given_back: u64,
    /// Settlements that could not be sent to the store.
    pub unsettled: u64,
    /// Connections made.
    pub connects: u64,
    /// Script calls sent.
    pub calls: u64,
    /// Pipelines sent.
    pub pipelines: u64,
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

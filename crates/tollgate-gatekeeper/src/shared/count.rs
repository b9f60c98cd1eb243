//! What happened between the gate and the store, counted: a fallback that nobody sees is a limit that nobody enforces.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Unanswered;

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that grows and shrinks.
#[derive(Debug, Default)]
pub(super) struct Level(AtomicU64);

impl Level {
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
pub(super) struct Tallies {
    pub(super) answered: Tally,
    pub(super) late: Tally,
    pub(super) down: Tally,
    pub(super) busy: Tally,
    pub(super) foreign: Tally,
    pub(super) garbled: Tally,
    pub(super) failed: Tally,
    pub(super) given_back: Tally,
    pub(super) unsettled: Tally,
    pub(super) connects: Tally,
    pub(super) calls: Tally,
    pub(super) pipelines: Tally,
}

impl Tallies {
    pub(super) fn unanswered(&self, why: Unanswered) {
        let tally = match why {
            Unanswered::Late => &self.late,
            Unanswered::Down => &self.down,
            Unanswered::Busy => &self.busy,
            Unanswered::Foreign => &self.foreign,
            Unanswered::Garbled => &self.garbled,
            Unanswered::Failed => &self.failed,
        };
        tally.add(1);
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

/// What happened so far. Every field but the last four counts decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decided by the store.
    pub answered: u64,
    /// Left to the local state because the deadline had passed.
    pub late: u64,
    /// Left to the local state without asking, because the store does not answer.
    pub down: u64,
    /// Left to the local state because too many were waiting.
    pub busy: u64,
    /// Left to the local state because something else is kept under the name of a key.
    pub foreign: u64,
    /// Left to the local state because the answer made no sense.
    pub garbled: u64,
    /// Left to the local state because the store said that it cannot.
    pub failed: u64,
    /// Charged by the store and given back, because nobody waited for the answer or another part of a Cluster refused.
    pub given_back: u64,
    /// What a request really cost, or that it ended, and could not be told to the store.
    pub unsettled: u64,
    /// Connections made.
    pub connects: u64,
    /// Script calls sent.
    pub calls: u64,
    /// Pipelines that they were sent in.
    pub pipelines: u64,
}

impl Counts {
    /// The decisions that were left to the local state, by why.
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

    /// How many decisions were left to the local state.
    pub const fn unanswered(&self) -> u64 {
        self.late + self.down + self.busy + self.foreign + self.garbled + self.failed
    }
}

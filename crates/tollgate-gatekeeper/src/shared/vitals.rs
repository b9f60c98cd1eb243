//! How the store is doing, for those who watch: it outlives the store, and keeps nothing open.

use core::time::Duration;

use std::sync::{Mutex, PoisonError};

use super::count::{Counts, Tallies};
use super::parts::Parts;
use super::times::{AnswerTimes, Times};

/// How a store is doing.
#[derive(Debug)]
pub struct Vitals {
    pub(super) tallies: Tallies,
    pub(super) trouble: Remark,
    /// The last slot whose value is not ours.
    pub(super) foreign: Remark,
    pub(super) parts: Parts,
    times: Times,
}

impl Vitals {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self {
            tallies: Tallies::default(),
            trouble: Remark::default(),
            foreign: Remark::default(),
            parts: Parts::new(is_cluster),
            times: Times::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.tallies.counts()
    }

    /// Why the last try to connect failed, if it did: for people.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.text()
    }

    /// The last slot that was found to hold a value that is not ours, escaped: for people.
    pub fn foreign(&self) -> Option<String> {
        self.foreign.text()
    }

    /// Which part of the store counts as gone and is not asked, from none (0.0) to all (1.0).
    pub fn gone(&self) -> f64 {
        self.parts.gone()
    }

    /// How long its answers took.
    pub fn times(&self) -> AnswerTimes {
        self.times.so_far()
    }

    /// The store has decided, after so long.
    pub(super) fn answered(&self, time: Duration) {
        self.tallies.answered.add(1);
        self.times.add(time);
    }
}

/// Something to say to people, if there is.
#[derive(Debug, Default)]
pub(super) struct Remark(Mutex<Option<String>>);

impl Remark {
    pub(super) fn set(&self, remark: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = remark;
    }

    fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

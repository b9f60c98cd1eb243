//! The health of a store, for metrics and messages to operators. It may outlive the store and keeps no connection open.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use std::sync::{Mutex, PoisonError};

use super::cluster_parts::ClusterParts;
use super::counters::{Counters, Counts};
use crate::histogram::{Histogram, HistogramSnapshot};

/// The health of a store.
#[derive(Debug)]
pub struct StoreHealth {
    pub(super) counters: Counters,
    /// The error of the last connection attempt, if it failed.
    pub(super) connect_error: DisplayText,
    /// The last slot with a value of other software.
    pub(super) foreign: DisplayText,
    pub(super) parts: ClusterParts,
    /// The times in which the store decided.
    times: Histogram,
}

impl StoreHealth {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self {
            counters: Counters::default(),
            connect_error: DisplayText::default(),
            foreign: DisplayText::default(),
            parts: ClusterParts::new(is_cluster),
            times: Histogram::default(),
        }
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// The error of the last connection attempt, for display; `None` if it succeeded.
    pub fn connect_error(&self) -> Option<String> {
        self.connect_error.text()
    }

    /// The last slot with a value of other software, escaped for display.
    pub fn foreign(&self) -> Option<String> {
        self.foreign.text()
    }

    /// The fraction of the store that is down and not asked, from 0.0 to 1.0.
    pub fn gone(&self) -> f64 {
        self.parts.gone()
    }

    /// The histogram of answer times.
    pub fn times(&self) -> HistogramSnapshot {
        self.times.read()
    }

    /// Records a decision of the store after this time.
    pub(super) fn answered(&self, time: Duration) {
        self.counters.answered.fetch_add(1, Relaxed);
        self.times.count(time.into());
    }
}

/// An optional text for display.
#[derive(Debug, Default)]
pub(super) struct DisplayText(Mutex<Option<String>>);

impl DisplayText {
    pub(super) fn set(&self, text: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

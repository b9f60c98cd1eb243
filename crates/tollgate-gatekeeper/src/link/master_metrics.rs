//! Metrics of the link to one master, for operators.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::live_metrics::live_metrics;

live_metrics! {
    /// Live metrics of the connection to one master.
    pub MasterMetrics,
    /// A snapshot of the metrics of one master.
    MasterReport {
        /// Whether the accounting connection is up.
        accounting_up: AtomicBool => bool,
        /// Whether the control connection is up.
        control_up: AtomicBool => bool,
        /// Whether a Tollgate master sent a message in the last seconds, or an original master is connected.
        heard: AtomicBool => bool,
        /// Connections made.
        connections: AtomicU64 => u64,
        /// Failed connection attempts, and peers that violated the protocol.
        failures: AtomicU64 => u64,
        /// Reports sent.
        reports_sent: AtomicU64 => u64,
        /// Reports dropped because no master was connected.
        reports_dropped_away: AtomicU64 => u64,
        /// Reports dropped because the master was too slow.
        reports_dropped_behind: AtomicU64 => u64,
        /// Orders applied.
        orders: AtomicU64 => u64,
        /// Messages that are not valid orders.
        order_faults: AtomicU64 => u64,
        /// The number of identifiers that are counted.
        identifiers: AtomicU64 => u64,
    }
}

impl MasterMetrics {
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

//! How it goes with one master, for operators.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident: $atomic:ty => $plain:ty,)+) => {
        /// How it goes with one master, as its link counts it.
        #[derive(Debug, Default)]
        pub struct MasterFigures { $(pub(super) $name: $atomic,)+ }

        /// How it goes with one master.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MasterReport { $($(#[$doc])* pub $name: $plain,)+ }

        impl MasterFigures {
            /// All of it, now.
            pub fn read(&self) -> MasterReport {
                MasterReport { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

figures! {
    /// Whether the master hears reports.
    accounting_up: AtomicBool => bool,
    /// Whether the master's orders are heard.
    control_up: AtomicBool => bool,
    /// Whether a master of our own has spoken in the last seconds.
    heard: AtomicBool => bool,
    /// Connections made.
    connections: AtomicU64 => u64,
    /// Tries to connect that failed, and peers that did not speak as they should.
    failures: AtomicU64 => u64,
    /// Reports sent.
    reports_sent: AtomicU64 => u64,
    /// Reports dropped because the master was away.
    reports_dropped_away: AtomicU64 => u64,
    /// Reports dropped because the master did not keep up.
    reports_dropped_behind: AtomicU64 => u64,
    /// Orders carried out.
    orders: AtomicU64 => u64,
    /// Messages that are no orders.
    order_faults: AtomicU64 => u64,
    /// Identifiers that are counted.
    identifiers: AtomicU64 => u64,
}

impl MasterFigures {
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

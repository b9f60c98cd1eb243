//! The metrics of the doors. Each thread has its own counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;

use super::tickets::Tickets;
use crate::metric::{collector, counter, gauge};

/// A counter of the doors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Admitted,
    Held,
    Refused,
    Malformed,
    Unauthorized,
    UnknownDomain,
    Settled,
    TicketExpired,
    TicketEvicted,
    ConnectionAccepted,
    ConnectionClosedForAnother,
    HandshakeFailed,
    LogLineIgnored,
}

impl Count {
    /// The metric names and help texts, in the order of the variants.
    const NAMES: [(&'static str, &'static str); 13] = [
        ("tollgate_door_admitted", "Requests admitted through doors"),
        ("tollgate_door_held", "Requests held by a rule through doors"),
        ("tollgate_door_refused", "Requests refused through doors"),
        ("tollgate_door_malformed", "Calls of doors that could not be read or answered"),
        ("tollgate_door_unauthorized", "Calls of doors without the token"),
        ("tollgate_door_unknown_domain", "Descriptors of a domain without limits, which pass"),
        ("tollgate_door_settled", "Requests whose end was reported through doors"),
        ("tollgate_door_tickets_expired", "Tickets that were not settled before their deadline"),
        ("tollgate_door_tickets_evicted", "Tickets settled before their deadline because there were too many"),
        ("tollgate_door_connections_accepted", "Connections to doors"),
        ("tollgate_door_connections_closed", "Connections to doors closed for another at the bound"),
        ("tollgate_door_handshakes_failed", "TLS handshakes with doors that failed"),
        ("tollgate_door_log_lines_ignored", "Lines of a proxy's access log without a known ticket"),
    ];
}

/// The counters of one thread, aligned so that no two threads share a cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct ThreadCounters {
    counts: [AtomicU64; Count::NAMES.len()],
    pub(super) connections: AtomicU64,
}

/// The counters of all threads.
pub(super) struct DoorCounters {
    pub(super) threads: Box<[ThreadCounters]>,
    tickets: Arc<Tickets>,
}

impl DoorCounters {
    pub(super) fn new(threads: usize, tickets: Arc<Tickets>) -> Self {
        Self { threads: (0..threads).map(|_| ThreadCounters::default()).collect(), tickets }
    }

    pub(super) fn count(&self, thread: usize, count: Count) {
        // Each counter has one writer, so a load and a store suffice. They are cheaper than an atomic addition.
        let counter = &self.threads[thread].counts[count as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// The metrics of the doors.
pub(super) fn door_metrics(counters: Arc<DoorCounters>) -> Box<dyn Collector> {
    collector(move |encoder| {
        let total = |read: &dyn Fn(&ThreadCounters) -> &AtomicU64| {
            counters.threads.iter().map(|own| read(own).load(Ordering::Relaxed)).sum::<u64>()
        };
        for (place, (name, help)) in Count::NAMES.into_iter().enumerate() {
            counter(encoder, name, help, total(&|own| &own.counts[place]))?;
        }
        gauge(encoder, "tollgate_door_connections", "Open connections to doors", total(&|own| &own.connections))?;
        gauge(encoder, "tollgate_door_tickets", "Unsettled tickets", counters.tickets.count() as u64)
    })
}

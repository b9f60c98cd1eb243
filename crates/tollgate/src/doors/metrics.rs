//! The metrics of the doors. Each thread has its own counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;

use super::tickets::Tickets;
use crate::metric::{collector, counter, counters, gauge};

counters! {
    Count, DoorCounts:
    Admitted = "admitted": "Requests admitted through doors",
    Held = "held": "Requests held by a rule through doors",
    Refused = "refused": "Requests refused through doors",
    Malformed = "malformed": "Calls of doors that could not be read or answered",
    Unauthorized = "unauthorized": "Calls of doors without the token",
    UnknownDomain = "unknown_domain": "Descriptors of a domain without limits, which pass",
    Settled = "settled": "Requests whose end was reported through doors",
    TicketExpired = "tickets_expired": "Tickets that were not settled before their deadline",
    TicketEvicted = "tickets_evicted": "Tickets settled before their deadline because there were too many",
    ConnectionAccepted = "connections_accepted": "Connections to doors",
    ConnectionClosedForAnother = "connections_closed": "Connections to doors closed for another at the bound",
    HandshakeFailed = "handshakes_failed": "TLS handshakes with doors that failed",
    LogLineIgnored = "log_lines_ignored": "Lines of a proxy's access log without a known ticket",
}

/// The counters of one thread.
#[derive(Default)]
pub(super) struct ThreadCounters {
    pub(super) counts: DoorCounts,
    /// Open connections.
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
}

/// The metrics of the doors.
pub(super) fn door_metrics(counters: Arc<DoorCounters>) -> Box<dyn Collector> {
    collector(move |encoder| {
        let total = |read: &dyn Fn(&ThreadCounters) -> u64| counters.threads.iter().map(read).sum::<u64>();
        for (index, (name, help)) in DoorCounts::NAMES.into_iter().enumerate() {
            counter(encoder, &format!("tollgate_door_{name}"), help, total(&|own| own.counts.read(index)))?;
        }
        let connections = total(&|own| own.connections.load(Ordering::Relaxed));
        gauge(encoder, "tollgate_door_connections", "Open connections to doors", connections)?;
        gauge(encoder, "tollgate_door_tickets", "Unsettled tickets", counters.tickets.count() as u64)
    })
}

//! The metrics of the doors. Each thread has its own counters.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::tickets::Tickets;

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
struct ThreadCounters {
    counts: [AtomicU64; Count::NAMES.len()],
    connections: AtomicU64,
}

/// The counters of all threads.
pub(super) struct DoorCounters {
    threads: Box<[ThreadCounters]>,
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

    pub(super) fn set_connections(&self, thread: usize, now: usize) {
        self.threads[thread].connections.store(now as u64, Ordering::Relaxed);
    }
}

/// The metrics of the doors.
pub(crate) struct DoorMetrics(pub(super) Arc<DoorCounters>);

impl fmt::Debug for DoorMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DoorMetrics")
    }
}

impl Collector for DoorMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (place, (name, help)) in Count::NAMES.into_iter().enumerate() {
            let total: u64 = self.0.threads.iter().map(|own| own.counts[place].load(Ordering::Relaxed)).sum();
            let metric = ConstCounter::new(total);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let connections: u64 = self.0.threads.iter().map(|own| own.connections.load(Ordering::Relaxed)).sum();
        let tickets = self.0.tickets.count() as u64;
        for (name, help, value) in [
            ("tollgate_door_connections", "Open connections to doors", connections),
            ("tollgate_door_tickets", "Unsettled tickets", tickets),
        ] {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

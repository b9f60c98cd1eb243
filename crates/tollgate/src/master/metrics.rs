//! Metrics of a master.
//!
//! An atomic counter costs more than applying a report to the state. Events are therefore counted in plain memory, and
//! a copy of all values is published a few times a second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::metric::{collector, counter, family, gauge, metric};

/// The metrics of a master. Clones share the same values.
#[derive(Clone, Debug, Default)]
pub(crate) struct MasterMetrics {
    published: Arc<Mutex<MasterCounts>>,
    pub(super) redis_copy: Arc<Mutex<RedisCopyCounts>>,
}

/// Counts by outcome or reason.
type Outcomes = BTreeMap<&'static str, u64>;

/// The counters of a master, and values at the time of the last publication. Their help texts below explain them.
#[derive(Clone, Debug, Default)]
pub(crate) struct MasterCounts {
    pub(super) reports: Outcomes,
    pub(super) faults: Outcomes,
    pub(crate) orders_dropped: u64,
    pub(crate) identifiers: u64,
    pub(super) forgotten: u64,
    pub(crate) gates: u64,
    pub(super) original_gates: u64,
    pub(crate) lag_ms: u64,
    pub(crate) subscribers: u64,
    pub(crate) delayed: u64,
    /// By domain: the bound on the excess requests of one client, and the largest excess.
    pub(super) overshoots: BTreeMap<String, [u64; 2]>,
}

/// The counters of the copy of the state on Redis. The names of its metrics contain `books`.
#[derive(Debug, Default)]
pub(super) struct RedisCopyCounts {
    pub(super) pages: u64,
    pub(super) walks: u64,
    pub(super) failures: Outcomes,
    pub(super) age_seconds: f64,
    pub(super) restored: u64,
    pub(super) is_superseded: bool,
}

impl MasterMetrics {
    /// Adds the metrics to those of the process.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let metrics = self.clone();
        registry.register_collector(collector(move |encoder| {
            metrics.status().encode(encoder)?;
            metrics.redis_copy.lock().encode(encoder)
        }));
    }

    /// The published values.
    pub(crate) fn status(&self) -> MasterCounts {
        self.published.lock().clone()
    }

    /// Publishes the counters.
    pub(super) fn publish(&self, counts: &MasterCounts) {
        self.published.lock().clone_from(counts);
    }
}

impl MasterCounts {
    /// Counts a report with this outcome.
    pub(super) fn report(&mut self, outcome: &'static str) {
        *self.reports.entry(outcome).or_default() += 1;
    }

    /// Counts a dropped message or a disconnected peer.
    pub(super) fn fault(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        encode_outcomes(encoder, "reports", "Reports of gates, by outcome", &self.reports)?;
        encode_outcomes(encoder, "faults", "Dropped messages and disconnected peers, by reason", &self.faults)?;
        let help = "Orders dropped for slow gates, which receive a snapshot later";
        counter(encoder, "tollgate_master_orders_dropped", help, self.orders_dropped)?;
        let help = "Identifiers evicted while they had debt";
        counter(encoder, "tollgate_master_forgotten", help, self.forgotten)?;
        for (name, help, value) in [
            ("identifiers", "Known identifiers", self.identifiers),
            ("gates", "Tollgate gates that sent a message in the last minute", self.gates),
            (
                "original_gates",
                "Connected original Smockron gatekeepers, counted by their subscriptions",
                self.original_gates,
            ),
            ("lag_milliseconds", "The longest round trip of a gate's latest message", self.lag_ms),
            ("subscribers", "Connections at the control address", self.subscribers),
            ("delays_in_force", "Identifiers that gates delay now", self.delayed),
        ] {
            gauge(encoder, &format!("tollgate_master_{name}"), help, value)?;
        }
        let overshoots = [
            ("bound", "Bound on the excess requests of one client, for the connected gates and the current delay"),
            ("observed", "Largest number of excess requests of one client in the last minute"),
        ];
        for (index, (name, help)) in overshoots.into_iter().enumerate() {
            let name = format!("tollgate_master_over_admission_{name}");
            let values = self.overshoots.iter().map(|(domain, values)| ([("domain", domain.as_str())], values[index]));
            family(encoder, (&name, help), MetricType::Gauge, values)?;
        }
        Ok(())
    }
}

impl RedisCopyCounts {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, total) in [
            ("pages_written", "Pages of the state written to Redis", self.pages),
            ("walks", "Completed scans, after which all changes are on Redis", self.walks),
            ("restored", "Identifiers loaded from the state on Redis", self.restored),
        ] {
            counter(encoder, &format!("tollgate_master_books_{name}"), help, total)?;
        }
        let help = "Failed attempts to write the state to Redis, by reason";
        encode_outcomes(encoder, "books_failures", help, &self.failures)?;
        let help = "Time since the last completed scan: a master that takes over does not have later reports";
        metric(encoder, "tollgate_master_books_age_seconds", help, &ConstGauge::new(self.age_seconds))?;
        let help = "1 when another master has taken over the state on Redis";
        gauge(encoder, "tollgate_master_books_superseded", help, u64::from(self.is_superseded))
    }
}

fn encode_outcomes(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, outcomes: &Outcomes) -> fmt::Result {
    let name = format!("tollgate_master_{name}");
    let outcomes = outcomes.iter().map(|(outcome, count)| ([("outcome", *outcome)], *count));
    family(encoder, (&name, help), MetricType::Counter, outcomes)
}

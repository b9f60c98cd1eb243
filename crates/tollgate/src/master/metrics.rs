//! Metrics of a master.
//!
//! An atomic counter costs more than applying a report to the state. Events are therefore counted in plain memory and
//! published a few times a second.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate_core::fleet::DomainOvershoot;

/// The metrics of a master. Clones share the same values.
#[derive(Clone, Debug, Default)]
pub(crate) struct MasterMetrics {
    reports: Family<OutcomeLabel, Counter>,
    faults: Family<OutcomeLabel, Counter>,
    orders_dropped: Counter,
    identifiers: Gauge<u64, AtomicU64>,
    forgotten: Counter,
    gates: Gauge<u64, AtomicU64>,
    original_gates: Gauge<u64, AtomicU64>,
    lag_ms: Gauge<u64, AtomicU64>,
    subscribers: Gauge<u64, AtomicU64>,
    delayed: Gauge<u64, AtomicU64>,
    bounds: Family<DomainLabel, Gauge<u64, AtomicU64>>,
    overshoots: Family<DomainLabel, Gauge<u64, AtomicU64>>,
    /// The metrics of the state on Redis.
    pub(super) redis_copy: RedisCopyMetrics,
}

/// The metrics of the state on Redis. Clones share the same values.
#[derive(Clone, Debug, Default)]
pub(super) struct RedisCopyMetrics {
    pages: Counter,
    walks: Counter,
    failures: Family<OutcomeLabel, Counter>,
    age_seconds: Gauge<f64, AtomicU64>,
    restored: Counter,
    superseded: Gauge<u64, AtomicU64>,
}

impl RedisCopyMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("books_pages_written", "Pages of the state written to Redis", self.pages.clone());
        registry.register("books_walks", "Completed scans, after which all changes are on Redis", self.walks.clone());
        registry.register(
            "books_failures",
            "Failed attempts to write the state to Redis, by reason",
            self.failures.clone(),
        );
        let help = "Time since the last completed scan: a master that takes over does not have later reports";
        registry.register("books_age_seconds", help, self.age_seconds.clone());
        registry.register("books_restored", "Identifiers loaded from the state on Redis", self.restored.clone());
        let help = "1 when another master has taken over the state on Redis";
        registry.register("books_superseded", help, self.superseded.clone());
    }

    pub(super) fn wrote(&self) {
        self.pages.inc();
    }

    /// Records a completed scan.
    pub(super) fn scanned(&self) {
        self.walks.inc();
        self.age_seconds.set(0.0);
    }

    /// Records a failed attempt, and the time since the last success.
    pub(super) fn failed(&self, why: &'static str, age: Duration) {
        self.failures.get_or_create(&outcome(why)).inc();
        self.age_seconds.set(age.as_secs_f64());
    }

    pub(super) fn restored(&self, identifiers: u64) {
        self.restored.inc_by(identifiers);
    }

    pub(super) fn superseded(&self) {
        self.superseded.set(1);
    }
}

/// The outcome of a report, or the reason of a failure, as a label.
type OutcomeLabel = [(&'static str, &'static str); 1];

/// The name of a domain as a label.
type DomainLabel = [(&'static str, String); 1];

fn outcome(word: &'static str) -> OutcomeLabel {
    [("outcome", word)]
}

/// Totals of the state at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateTotals {
    pub(super) identifiers: usize,
    pub(super) forgotten: u64,
    pub(super) gates: usize,
    pub(super) original_gates: usize,
    pub(super) lag_ms: u64,
    pub(super) subscribers: usize,
}

/// The status of the master, for operators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MasterStatus {
    /// Tollgate gates that sent a message in the last minute.
    pub(crate) gates: u64,
    /// The longest round trip of a gate's latest message.
    pub(crate) lag_ms: u64,
    /// Connections at the control address.
    pub(crate) subscribers: u64,
    /// Known identifiers.
    pub(crate) identifiers: u64,
    /// Identifiers that gates delay now.
    pub(crate) delayed: u64,
    /// Orders dropped because a subscriber was slow.
    pub(crate) orders_dropped: u64,
}

/// The counts since the last publication.
#[derive(Debug, Default)]
pub(super) struct UnpublishedCounts {
    reports: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    orders_dropped: u64,
}

impl UnpublishedCounts {
    pub(super) fn report(&mut self, outcome: &'static str) {
        *self.reports.entry(outcome).or_default() += 1;
    }

    pub(super) fn fault(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub(super) fn orders_dropped(&mut self, count: u64) {
        self.orders_dropped += count;
    }
}

impl MasterMetrics {
    /// Registers the metrics under their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("tollgate_master");
        registry.register("reports", "Reports of gates, by outcome", self.reports.clone());
        registry.register("faults", "Dropped messages and disconnected peers, by reason", self.faults.clone());
        registry.register(
            "orders_dropped",
            "Orders dropped for slow gates, which receive a snapshot later",
            self.orders_dropped.clone(),
        );
        registry.register("identifiers", "Known identifiers", self.identifiers.clone());
        registry.register("forgotten", "Identifiers evicted while they had debt", self.forgotten.clone());
        registry.register("gates", "Tollgate gates that sent a message in the last minute", self.gates.clone());
        registry.register(
            "original_gates",
            "Connected original Smockron gatekeepers, counted by their subscriptions",
            self.original_gates.clone(),
        );
        registry.register("lag_milliseconds", "The longest round trip of a gate's latest message", self.lag_ms.clone());
        registry.register("subscribers", "Connections at the control address", self.subscribers.clone());
        registry.register("delays_in_force", "Identifiers that gates delay now", self.delayed.clone());
        let help = "Bound on the excess requests of one client, for the connected gates and the current delay";
        registry.register("over_admission_bound", help, self.bounds.clone());
        let help = "Largest number of excess requests of one client in the last minute";
        registry.register("over_admission_observed", help, self.overshoots.clone());
        self.redis_copy.register(registry);
    }

    /// The current status.
    pub(crate) fn status(&self) -> MasterStatus {
        MasterStatus {
            gates: self.gates.get(),
            lag_ms: self.lag_ms.get(),
            subscribers: self.subscribers.get(),
            identifiers: self.identifiers.get(),
            delayed: self.delayed.get(),
            orders_dropped: self.orders_dropped.get(),
        }
    }

    /// Sets the number of delayed identifiers.
    pub(super) fn publish_delayed(&self, delayed: usize) {
        self.delayed.set(delayed as u64);
    }

    /// Sets the values of a domain.
    pub(super) fn publish_domain(&self, overshoot: &DomainOvershoot<'_>) {
        let name = [("domain", String::from_utf8_lossy(overshoot.name).into_owned())];
        self.bounds.get_or_create(&name).set(overshoot.bound);
        self.overshoots.get_or_create(&name).set(overshoot.overshoot);
    }

    /// Adds the counts and sets the totals.
    pub(super) fn publish(&self, counts: &mut UnpublishedCounts, totals: StateTotals) {
        let UnpublishedCounts { reports, faults, orders_dropped } = std::mem::take(counts);
        for (word, count) in reports {
            self.reports.get_or_create(&outcome(word)).inc_by(count);
        }
        for (word, count) in faults {
            self.faults.get_or_create(&outcome(word)).inc_by(count);
        }
        self.orders_dropped.inc_by(orders_dropped);
        self.identifiers.set(totals.identifiers as u64);
        self.forgotten.inc_by(totals.forgotten - self.forgotten.get());
        self.gates.set(totals.gates as u64);
        self.original_gates.set(totals.original_gates as u64);
        self.lag_ms.set(totals.lag_ms);
        self.subscribers.set(totals.subscribers as u64);
    }
}

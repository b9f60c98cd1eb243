//! What a master has done and dropped, for operators.
//!
//! A counter that operators can read costs more than what a report changes in the books. So things are counted in plain memory, and
//! handed over a few times a second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate_core::fleet::DomainOvershoot;

/// What operators can read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    reports: Family<Word, Counter>,
    faults: Family<Word, Counter>,
    orders_dropped: Counter,
    identifiers: Gauge<u64, AtomicU64>,
    forgotten: Counter,
    gates: Gauge<u64, AtomicU64>,
    lag_ms: Gauge<u64, AtomicU64>,
    subscribers: Gauge<u64, AtomicU64>,
    delayed: Gauge<u64, AtomicU64>,
    bounds: Family<DomainName, Gauge<u64, AtomicU64>>,
    overshoots: Family<DomainName, Gauge<u64, AtomicU64>>,
    books: BookFigures,
}

/// How the books on Redis are kept. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(super) struct BookFigures {
    pages: Counter,
    walks: Counter,
    failures: Family<Word, Counter>,
    age_seconds: Gauge<f64, AtomicU64>,
    restored: Counter,
    superseded: Gauge<u64, AtomicU64>,
}

impl BookFigures {
    fn register(&self, registry: &mut Registry) {
        registry.register("books_pages_written", "Pages of the books written to Redis", self.pages.clone());
        registry.register("books_walks", "Times that everything was written to Redis", self.walks.clone());
        registry.register(
            "books_failures",
            "Tries to keep the books on Redis that failed, by why",
            self.failures.clone(),
        );
        let help = "How long ago everything was last written to Redis: a master that takes over does not know of what came since";
        registry.register("books_age_seconds", help, self.age_seconds.clone());
        registry.register("books_restored", "Identifiers taken over from the books on Redis", self.restored.clone());
        let help = "1 when another master has taken over the books on Redis";
        registry.register("books_superseded", help, self.superseded.clone());
    }

    pub(super) fn wrote(&self) {
        self.pages.inc();
    }

    /// Everything is written down.
    pub(super) fn walked(&self) {
        self.walks.inc();
        self.age_seconds.set(0.0);
    }

    /// A try failed, and so long ago was the last that did not.
    pub(super) fn failed(&self, why: &'static str, age: Duration) {
        self.failures.get_or_create(&Word(why)).inc();
        self.age_seconds.set(age.as_secs_f64());
    }

    pub(super) fn restored(&self, identifiers: u64) {
        self.restored.inc_by(identifiers);
    }

    pub(super) fn superseded(&self) {
        self.superseded.set(1);
    }
}

/// The label of what is counted for each domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DomainName(String);

impl EncodeLabelSet for DomainName {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::{EncodeLabelKey, EncodeLabelValue};
        let mut label = encoder.encode_label();
        let mut key = label.encode_label_key()?;
        EncodeLabelKey::encode(&"domain", &mut key)?;
        let mut value = key.encode_label_value()?;
        EncodeLabelValue::encode(&self.0, &mut value)?;
        value.finish()
    }
}

/// The one label: what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelSet for Word {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::{EncodeLabelKey, EncodeLabelValue};
        let mut label = encoder.encode_label();
        let mut key = label.encode_label_key()?;
        EncodeLabelKey::encode(&"outcome", &mut key)?;
        let mut value = key.encode_label_value()?;
        EncodeLabelValue::encode(&self.0, &mut value)?;
        value.finish()
    }
}

/// How things stand in the books.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) identifiers: usize,
    pub(super) forgotten: u64,
    pub(super) gates: usize,
    pub(super) lag_ms: u64,
    pub(super) subscribers: usize,
}

/// How things stand, for operators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Gates of our own that were heard in the last minute.
    pub(crate) gates: u64,
    /// The longest round trip of a gate's last word.
    pub(crate) lag_ms: u64,
    /// Connections at the control address.
    pub(crate) subscribers: u64,
    /// Identifiers in the books.
    pub(crate) identifiers: u64,
    /// Identifiers that gates are to delay now.
    pub(crate) delayed: u64,
    /// Orders that a slow gate had no room for.
    pub(crate) orders_dropped: u64,
}

/// What was counted since the last time it was handed over.
#[derive(Debug, Default)]
pub(super) struct Counts {
    reports: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    orders_dropped: u64,
}

impl Counts {
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

impl Figures {
    /// Makes them known under their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("tollgate_master");
        registry.register("reports", "Reports of gates, by what became of them", self.reports.clone());
        registry.register("faults", "Messages dropped and peers cut off, by why", self.faults.clone());
        registry.register(
            "orders_dropped",
            "Orders that a slow gate had no room for; it is told again",
            self.orders_dropped.clone(),
        );
        registry.register("identifiers", "Identifiers in the books", self.identifiers.clone());
        registry.register(
            "forgotten",
            "Identifiers given up for others although they owed something",
            self.forgotten.clone(),
        );
        registry.register("gates", "Gates of our own that were heard in the last minute", self.gates.clone());
        registry.register("lag_milliseconds", "The longest round trip of a gate's last word", self.lag_ms.clone());
        registry.register("subscribers", "Connections at the control address", self.subscribers.clone());
        registry.register("delays_in_force", "Identifiers that gates are to delay now", self.delayed.clone());
        let help =
            "Requests of one caller that the gates there are can let through too much, by the time that words take now";
        registry.register("over_admission_bound", help, self.bounds.clone());
        let help = "Requests of one caller that were let through too much, at most, in the last minute";
        registry.register("over_admission_observed", help, self.overshoots.clone());
        self.books.register(registry);
    }

    /// How the books on Redis are kept.
    pub(super) fn books(&self) -> &BookFigures {
        &self.books
    }

    /// How things stand.
    pub(crate) fn standing(&self) -> Seen {
        Seen {
            gates: self.gates.get(),
            lag_ms: self.lag_ms.get(),
            subscribers: self.subscribers.get(),
            identifiers: self.identifiers.get(),
            delayed: self.delayed.get(),
            orders_dropped: self.orders_dropped.get(),
        }
    }

    /// Takes over how many are delayed.
    pub(super) fn publish_delayed(&self, delayed: usize) {
        self.delayed.set(delayed as u64);
    }

    /// Takes over how a domain is kept.
    pub(super) fn publish_domain(&self, figures: &DomainOvershoot<'_>) {
        let name = DomainName(String::from_utf8_lossy(figures.name).into_owned());
        self.bounds.get_or_create(&name).set(figures.bound);
        self.overshoots.get_or_create(&name).set(figures.overshoot);
    }

    /// Takes over what was counted, and how things stand.
    pub(super) fn publish(&self, counts: &mut Counts, standing: Standing) {
        let Counts { reports, faults, orders_dropped } = std::mem::take(counts);
        for (word, count) in reports {
            self.reports.get_or_create(&Word(word)).inc_by(count);
        }
        for (word, count) in faults {
            self.faults.get_or_create(&Word(word)).inc_by(count);
        }
        self.orders_dropped.inc_by(orders_dropped);
        self.identifiers.set(standing.identifiers as u64);
        self.forgotten.inc_by(standing.forgotten - self.forgotten.get());
        self.gates.set(standing.gates as u64);
        self.lag_ms.set(standing.lag_ms);
        self.subscribers.set(standing.subscribers as u64);
    }
}

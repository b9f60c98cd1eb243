//! The state of the master, and the subscribers that receive its orders.
//!
//! [`Master`] keeps the debts of identifiers, and produces notices of new delays. A notice is sent as an order in two
//! formats: Tollgate's own, and that of Smockron's original gatekeepers. A subscriber gets the formats to whose topics
//! it has subscribed. A new subscriber first gets a snapshot of all delays. A beacon is the master's heartbeat, which
//! only Tollgate gates use.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::RandomState;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::fleet::{ClockReading, Domain, Master, MasterSettings, Notice, Outcome, Snapshot};
use tollgate_core::time::Span;
use tollgate_wire::smockron;
use tollgate_wire::zmtp::Connection;

use super::clock::Clock;
use super::metrics::{MasterCounts, MasterMetrics};
use super::statsd::Statsd;

/// The state of all limits, with the clock, the subscribers and the counters.
pub(super) struct MasterState {
    pub(super) master: Master<RandomState>,
    pub(super) clock: Clock,
    pub(super) subscribers: Vec<Rc<Subscriber>>,
    pub(super) counts: MasterCounts,
    /// Where the counts are published.
    metrics: MasterMetrics,
    census: DelayCensus,
    statsd: Option<Statsd>,
    /// The unknown domains that were logged.
    unknown_domains: BTreeSet<Box<[u8]>>,
}

/// The number of unknown domains that are logged, once each. Peers choose their names.
const UNKNOWN_DOMAINS_MAX: usize = 64;

/// Counts the delayed identifiers for a metric, one part of the state at a time.
#[derive(Default)]
struct DelayCensus {
    /// The next slot to count.
    from: usize,
    /// The delayed identifiers so far.
    delayed: usize,
}

/// Slots that one beacon interval counts. Two million slots take eight seconds, and one part less than a millisecond.
const CENSUS_SLOTS: usize = 65_536;

/// A subscribed gate.
#[derive(Default)]
pub(super) struct Subscriber {
    /// The topics that it has subscribed to.
    topics: RefCell<Vec<Box<[u8]>>>,
    /// The serialised messages to send next.
    outbox: RefCell<Vec<u8>>,
    /// The position in the snapshot of all delays, while it is being sent.
    cursor: Cell<Option<usize>>,
    /// Notified when there is something to send.
    pub(super) woken: Notify,
}

/// The maximum number of identifiers, over all domains.
const IDENTIFIERS_MAX: usize = 2_000_000;
/// The maximum number of Tollgate gates.
const GATES_MAX: usize = 1024;
/// The maximum age of a report that is charged.
const LAG_MAX: Span = Span::from_secs(10);
/// The longest delay that is accepted from a gate.
const DELAY_MAX: Span = Span::from_secs(3600);
/// The interval of beacons. Metrics are published at the same interval.
const BEACON_EVERY: Span = Span::from_millis(250);
/// The bound on queued bytes for one subscriber. A slow subscriber loses orders, and receives a snapshot of all
/// delays when it has caught up.
const OUTBOX_BYTES_MAX: usize = 1024 * 1024;
/// The snapshot continues when at most this many bytes are queued.
const OUTBOX_BYTES_LOW: usize = 64 * 1024;

impl MasterState {
    pub(super) fn new(domains: Vec<Domain>, clock: Clock, metrics: MasterMetrics, statsd: Option<Statsd>) -> Self {
        let master = master(domains, &clock);
        Self {
            master,
            clock,
            subscribers: Vec::new(),
            counts: MasterCounts::default(),
            metrics,
            census: DelayCensus::default(),
            statsd,
            unknown_domains: BTreeSet::new(),
        }
    }

    /// Applies a message of a gate to the state, and counts its outcome.
    pub(super) fn take_in(&mut self, frames: &[&[u8]], reading: ClockReading) {
        let report = match smockron::read_report(frames) {
            Ok(report) => report,
            Err(fault) => return self.counts.fault(fault.as_str()),
        };
        let outcome = self.master.handle_report(&report, reading);
        if let Some(statsd) = &mut self.statsd {
            statsd.count(&report, outcome);
        }
        if outcome == Outcome::UnknownDomain {
            self.log_unknown_domain(report.domain);
        }
        self.counts.report(match outcome {
            Outcome::Charged(_) => "charged",
            Outcome::Repeated => "repeated",
            Outcome::Refused => "refused",
            Outcome::Stale => "stale",
            Outcome::UnknownDomain => "unknown-domain",
            Outcome::Stranger => "stranger",
            Outcome::Untracked => "untracked",
        });
    }

    /// Logs a domain for which there is no limit, once.
    fn log_unknown_domain(&mut self, domain: &[u8]) {
        if self.unknown_domains.len() < UNKNOWN_DOMAINS_MAX && self.unknown_domains.insert(domain.into()) {
            tracing::warn!(
                domain = %domain.escape_ascii(),
                "a gate reports to an unknown domain, which has no limit: give a rule this wire_domain, or a \
                 [[domain]] this name"
            );
        }
    }

    /// The number of connected original gates, which are Smockron's. Tollgate gates subscribe to beacons, original ones
    /// do not.
    fn original_gates(&self) -> usize {
        let beacons = smockron::tollgate_topic(&[]);
        self.subscribers.iter().filter(|gate| !gate.topics.borrow().is_empty() && !gate.wants(&beacons)).count()
    }

    /// Cancels the debt of an identifier for an operator. Returns whether the identifier is known.
    pub(super) fn pardon(&mut self, domain: &[u8], identifier: &[u8]) -> bool {
        let pardoned = self.master.pardon(domain, identifier, self.clock.read());
        self.announce();
        pardoned
    }

    /// Applies new rules. Debts in a domain with unchanged limits are kept. Gates treat this as a new master and
    /// report everything again, as after a restart.
    pub(super) fn reload(&mut self, domains: Vec<Domain>) {
        let now = self.clock.read().now;
        let unchanged: Vec<_> = {
            let before = self.master.domains();
            domains.iter().filter(|domain| before.contains(domain)).map(|domain| domain.name.clone()).collect()
        };
        let mut next = master(domains, &self.clock);
        for (domain, identifier, clears) in self.master.debts(0..self.master.slots(), now) {
            if unchanged.iter().any(|name| **name == *domain) {
                for (index, clear) in clears.enumerate() {
                    next.restore(domain, identifier, index, clear, now);
                }
            }
        }
        self.master = next;
        self.census = DelayCensus::default();
        self.unknown_domains.clear();
        for subscriber in &self.subscribers {
            subscriber.cursor.set(Some(0));
            subscriber.woken.notify_one();
        }
    }

    /// Queues all pending notices for the subscribers, and a beacon if it is due.
    pub(super) fn announce(&mut self) {
        let reading = self.clock.read();
        let (mut own, mut original) = (Vec::new(), Vec::new());
        let mut dropped = 0;
        while let Some(notice) = self.master.poll_notice(reading.now) {
            own.clear();
            original.clear();
            put_notice(&notice, reading.wall_ms, &mut own, &mut original);
            for subscriber in &self.subscribers {
                dropped += u64::from(!subscriber.queue_notice(&notice, &own, &original));
            }
        }
        if let Some(beacon) = self.master.poll_beacon(reading.now) {
            own.clear();
            smockron::put_order(&mut own, &beacon);
            let topic = smockron::tollgate_topic(&[]);
            for subscriber in self.subscribers.iter().filter(|subscriber| subscriber.wants(&topic)) {
                dropped += u64::from(!subscriber.post(&own));
            }
        }
        self.counts.orders_dropped += dropped;
    }

    /// Continues the snapshot of a subscriber, if it is incomplete and there is room.
    pub(super) fn catch_up(&self, subscriber: &Subscriber) {
        let reading = self.clock.read();
        let Some(mut cursor) = subscriber.cursor.get() else { return };
        if cursor == 0 && subscriber.wants(&smockron::tollgate_topic(&[])) {
            smockron::put_order(&mut subscriber.outbox.borrow_mut(), &self.master.beacon(reading.now));
        }
        while subscriber.outbox.borrow().len() < OUTBOX_BYTES_LOW {
            match self.master.snapshot(&mut cursor, |domain| subscriber.covers(domain), reading.now) {
                Snapshot::Notice(notice) => {
                    let (mut own, mut original) = (Vec::new(), Vec::new());
                    put_notice(&notice, reading.wall_ms, &mut own, &mut original);
                    subscriber.queue_notice(&notice, &own, &original);
                }
                Snapshot::Onwards => {}
                Snapshot::Done => return subscriber.cursor.set(None),
            }
        }
        subscriber.cursor.set(Some(cursor));
    }

    /// Publishes the counters as metrics.
    fn publish(&mut self) {
        let now = self.clock.read().now;
        let ((gates, lag), original_gates) = (self.master.gates(now), self.original_gates());
        self.counts.identifiers = self.master.identifiers() as u64;
        self.counts.forgotten = self.master.evicted_with_debt();
        self.counts.gates = gates as u64;
        self.counts.original_gates = original_gates as u64;
        self.counts.lag_ms = lag.as_millis_ceil();
        self.counts.subscribers = self.subscribers.len() as u64;
        for overshoot in self.master.overshoots(original_gates, now) {
            let domain = String::from_utf8_lossy(overshoot.name).into_owned();
            self.counts.overshoots.insert(domain, [overshoot.bound, overshoot.overshoot]);
        }
        let to = self.census.from + CENSUS_SLOTS;
        self.census.delayed += self.master.delayed(self.census.from..to, now);
        self.census.from = to;
        if to >= self.master.slots() {
            self.counts.delayed = self.census.delayed as u64;
            self.census = DelayCensus::default();
        }
        self.metrics.publish(&self.counts);
        if let Some(statsd) = &mut self.statsd {
            statsd.send();
        }
    }
}

/// An empty [`Master`] with a new epoch, by which gates recognise that its state is new.
fn master(domains: Vec<Domain>, clock: &Clock) -> Master<RandomState> {
    let settings = MasterSettings {
        domains,
        identifiers_max: IDENTIFIERS_MAX,
        gates_max: GATES_MAX,
        lag_max: LAG_MAX,
        beacon_every: BEACON_EVERY,
        delay_max: DELAY_MAX,
    };
    // 0 is reserved for "no master".
    let epoch = getrandom::u64().expect("the system has random numbers") | 1;
    Master::new(settings, epoch, RandomState::new(), clock.read().now)
}

/// Serialises a notice in both formats. `original` stays empty if Smockron has no such order.
fn put_notice(notice: &Notice<'_>, wall_ms: u64, own: &mut Vec<u8>, original: &mut Vec<u8>) {
    smockron::put_order(own, &notice.own());
    if let Some(order) = notice.original(wall_ms) {
        smockron::put_order(original, &order);
    }
}

impl Subscriber {
    /// Adds a topic and starts a snapshot. Returns whether there was room. A repeated topic is a further gate behind
    /// a proxy, which needs a snapshot too.
    pub(super) fn subscribe(&self, topic: &[u8], topics_max: usize) -> bool {
        let mut topics = self.topics.borrow_mut();
        let is_known = topics.iter().any(|known| **known == *topic);
        if !is_known && topics.len() >= topics_max {
            return false;
        }
        if !is_known {
            topics.push(topic.into());
        }
        self.cursor.set(Some(0));
        true
    }

    pub(super) fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics.borrow_mut();
        if let Some(index) = topics.iter().position(|other| **other == *topic) {
            topics.swap_remove(index);
        }
    }

    /// Moves the queued messages to the output of the connection, which encrypts them if it is not plain.
    pub(super) fn take_into(&self, connection: &mut Connection) {
        let mut outbox = self.outbox.borrow_mut();
        if connection.is_plain() && connection.output().is_empty() {
            std::mem::swap(connection.output(), &mut outbox);
        } else {
            connection.send(&outbox);
            outbox.clear();
        }
    }

    /// Whether it has subscribed to this topic, or to a prefix of it.
    fn wants(&self, topic: &[u8]) -> bool {
        self.topics.borrow().iter().any(|wanted| topic.starts_with(wanted))
    }

    /// Whether it has subscribed to any topic of this domain.
    fn covers(&self, domain: &[u8]) -> bool {
        self.topics.borrow().iter().any(|wanted| smockron::topic_covers(wanted, domain))
    }

    /// Queues a notice in the requested formats. Returns whether there was room.
    fn queue_notice(&self, notice: &Notice<'_>, own: &[u8], original: &[u8]) -> bool {
        let domain = notice.own().domain;
        let own_fits = !self.wants(&smockron::tollgate_topic(domain)) || self.post(own);
        let original_fits = original.is_empty() || !self.wants(&smockron::topic(domain)) || self.post(original);
        own_fits && original_fits
    }

    /// Queues a message. Without room for it, a new snapshot is due. Returns whether there was room.
    fn post(&self, message: &[u8]) -> bool {
        let mut outbox = self.outbox.borrow_mut();
        let fits = outbox.len() + message.len() <= OUTBOX_BYTES_MAX;
        if fits {
            outbox.extend_from_slice(message);
        } else {
            self.cursor.set(Some(0));
        }
        self.woken.notify_one();
        fits
    }
}

/// Sends beacons and publishes metrics at an interval, also while no gate sends reports.
pub(super) async fn send_beacons(state: &RefCell<MasterState>) {
    loop {
        {
            let mut state = state.borrow_mut();
            state.announce();
            state.publish();
        }
        let due = {
            let state = state.borrow();
            state.master.poll_timeout().since(state.clock.read().now)
        };
        tokio::time::sleep(Duration::from(due).max(Duration::from_millis(1))).await;
    }
}

//! The books, and who is told what is in them.

use std::cell::{Cell, RefCell};
use std::hash::RandomState;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::fleet::{ClockReading, Domain, Master, MasterSettings, Notice, Outcome, Snapshot};
use tollgate_core::time::Span;
use tollgate_wire::smockron;
use tollgate_wire::zmtp::Connection;

use super::clock::Clock;
use super::figures::{Counts, Figures, Standing};
use super::statsd::Statsd;

/// The bookkeeper, its clock, its listeners, and what has happened so far.
pub(super) struct Books {
    master: Master<RandomState>,
    clock: Clock,
    subscribers: Vec<Rc<Subscriber>>,
    counts: Counts,
    figures: Figures,
    census: Census,
    statsd: Option<Statsd>,
}

/// Who is delayed, counted a stretch of the books at a time.
#[derive(Default)]
struct Census {
    from: usize,
    delayed: usize,
}

/// How many slots one beat counts: two million take eight seconds, and one beat less than a millisecond.
const CENSUS_STRETCH: usize = 65_536;

/// A gate that listens.
#[derive(Default)]
pub(super) struct Subscriber {
    topics: RefCell<Vec<Box<[u8]>>>,
    /// What is to be sent to it next.
    outbox: RefCell<Vec<u8>>,
    /// How far it has been told everything that is in force, if it is being told.
    cursor: Cell<Option<usize>>,
    woken: Notify,
}

const IDENTIFIERS_MAX: usize = 2_000_000;
const GATES_MAX: usize = 1024;
const LAG_MAX: Span = Span::from_secs(10);
const DELAY_MAX: Span = Span::from_secs(3600);
const BEACON_EVERY: Span = Span::from_millis(250);
/// What waits for one subscriber. One that does not keep up is told everything in force once it does, instead of every step.
const OUTBOX_BYTES_MAX: usize = 1024 * 1024;
/// A snapshot goes on when this little is waiting.
const OUTBOX_BYTES_LOW: usize = 64 * 1024;

impl Books {
    pub(super) fn new(domains: Vec<Domain>, clock: Clock, figures: Figures, statsd: Option<Statsd>) -> Self {
        let master = master(domains, &clock);
        Self {
            master,
            clock,
            subscribers: Vec::new(),
            counts: Counts::default(),
            figures,
            census: Census::default(),
            statsd,
        }
    }

    pub(super) fn read_clock(&self) -> ClockReading {
        self.clock.read()
    }

    pub(super) fn master(&mut self) -> &mut Master<RandomState> {
        &mut self.master
    }

    /// A gate said something.
    pub(super) fn take_in(&mut self, frames: &[&[u8]], reading: ClockReading) {
        let report = match smockron::read_report(frames) {
            Ok(report) => report,
            Err(fault) => return self.counts.fault(fault.as_str()),
        };
        let outcome = self.master.handle_report(&report, reading);
        if let Some(statsd) = &mut self.statsd {
            statsd.count(&report, outcome);
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

    /// An operator forgives what an identifier owes. Says whether there was such an identifier.
    pub(super) fn pardon(&mut self, domain: &[u8], identifier: &[u8]) -> bool {
        let pardoned = self.master.pardon(domain, identifier, self.clock.read());
        self.announce();
        pardoned
    }

    /// Puts other rules into force. What is owed under a domain whose limits have not changed stays owed. To gates this is another master:
    /// they tell it all that they know, as after a restart.
    pub(super) fn reload(&mut self, domains: Vec<Domain>) {
        let now = self.clock.read().now;
        let unchanged: Vec<_> = {
            let before = self.master.domains();
            domains.iter().filter(|domain| before.contains(domain)).map(|domain| domain.name.clone()).collect()
        };
        let mut next = master(domains, &self.clock);
        for (domain, identifier, clears) in self.master.debts(0..self.master.slots(), now) {
            if unchanged.iter().any(|name| **name == *domain) {
                for (place, clear) in clears.enumerate() {
                    next.restore(domain, identifier, place, clear, now);
                }
            }
        }
        self.master = next;
        self.census = Census::default();
        for subscriber in &self.subscribers {
            subscriber.cursor.set(Some(0));
            subscriber.woken.notify_one();
        }
    }

    /// A peer was cut off.
    pub(super) fn note_fault(&mut self, fault: &'static str) {
        self.counts.fault(fault);
    }

    /// Tells the subscribers what there is to tell.
    pub(super) fn announce(&mut self) {
        let reading = self.clock.read();
        let (mut own, mut original) = (Vec::new(), Vec::new());
        let mut dropped = 0;
        while let Some(notice) = self.master.poll_notice(reading.now) {
            own.clear();
            original.clear();
            put_notice(&notice, reading.wall_ms, &mut own, &mut original);
            for subscriber in &self.subscribers {
                dropped += u64::from(!subscriber.hear(&notice, &own, &original));
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
        self.counts.orders_dropped(dropped);
    }

    pub(super) fn welcome(&mut self, subscriber: Rc<Subscriber>) {
        self.subscribers.push(subscriber);
    }

    pub(super) fn part(&mut self, subscriber: &Rc<Subscriber>) {
        self.subscribers.retain(|other| !Rc::ptr_eq(other, subscriber));
    }

    /// Goes on telling a subscriber what is in force, if it has not heard it all and has room.
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
                    subscriber.hear(&notice, &own, &original);
                }
                Snapshot::Onwards => {}
                Snapshot::Done => return subscriber.cursor.set(None),
            }
        }
        subscriber.cursor.set(Some(cursor));
    }

    /// Hands what was counted to operators.
    fn publish(&mut self) {
        let (gates, lag) = self.master.gates(self.clock.read().now);
        let standing = Standing {
            identifiers: self.master.identifiers(),
            forgotten: self.master.evicted_with_debt(),
            gates,
            lag_ms: lag.as_millis_ceil(),
            subscribers: self.subscribers.len(),
        };
        self.figures.publish(&mut self.counts, standing);
        if let Some(statsd) = &mut self.statsd {
            statsd.send();
        }
        let now = self.clock.read().now;
        self.master.overshoots(now).for_each(|figures| self.figures.publish_domain(&figures));
        let to = self.census.from + CENSUS_STRETCH;
        self.census.delayed += self.master.delayed(self.census.from..to, now);
        self.census.from = to;
        if to >= self.master.slots() {
            self.figures.publish_delayed(self.census.delayed);
            self.census = Census::default();
        }
    }
}

/// A bookkeeper who knows nobody yet.
fn master(domains: Vec<Domain>, clock: &Clock) -> Master<RandomState> {
    let settings = MasterSettings {
        domains,
        identifiers_max: IDENTIFIERS_MAX,
        gates_max: GATES_MAX,
        lag_max: LAG_MAX,
        beacon_every: BEACON_EVERY,
        delay_max: DELAY_MAX,
    };
    // No master is number 0.
    let epoch = getrandom::u64().expect("the system has random numbers") | 1;
    Master::new(settings, epoch, RandomState::new(), clock.read().now)
}

fn put_notice(notice: &Notice<'_>, wall_ms: u64, own: &mut Vec<u8>, original: &mut Vec<u8>) {
    smockron::put_order(own, &notice.own());
    if let Some(order) = notice.original(wall_ms) {
        smockron::put_order(original, &order);
    }
}

impl Subscriber {
    /// Adds a topic, and begins to tell everything in force. Says whether there was room for it. A topic that is there already is one more
    /// gate behind a proxy, which is to be told as well.
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
        if let Some(place) = topics.iter().position(|other| **other == *topic) {
            topics.swap_remove(place);
        }
    }

    /// Resolves when there is something to send.
    pub(super) async fn wait(&self) {
        self.woken.notified().await;
    }

    /// Sends what is to be sent next.
    pub(super) fn take_into(&self, connection: &mut Connection) {
        let mut outbox = self.outbox.borrow_mut();
        if connection.is_plain() && connection.output().is_empty() {
            std::mem::swap(connection.output(), &mut outbox);
        } else {
            connection.send(&outbox);
            outbox.clear();
        }
    }

    fn wants(&self, topic: &[u8]) -> bool {
        self.topics.borrow().iter().any(|wanted| topic.starts_with(wanted))
    }

    fn covers(&self, domain: &[u8]) -> bool {
        self.topics.borrow().iter().any(|wanted| smockron::topic_covers(wanted, domain))
    }

    /// Sends a notice in the forms that are wanted. Says whether there was room.
    fn hear(&self, notice: &Notice<'_>, own: &[u8], original: &[u8]) -> bool {
        let domain = notice.own().domain;
        let own_fits = !self.wants(&smockron::tollgate_topic(domain)) || self.post(own);
        let original_fits = original.is_empty() || !self.wants(&smockron::topic(domain)) || self.post(original);
        own_fits && original_fits
    }

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

/// Says every now and then that the master is there, even when no gate says anything.
pub(super) async fn beat(books: &RefCell<Books>) {
    loop {
        {
            let mut books = books.borrow_mut();
            books.announce();
            books.publish();
        }
        let due = {
            let books = books.borrow();
            books.master.poll_timeout().since(books.read_clock().now)
        };
        tokio::time::sleep(Duration::from(due).max(Duration::from_millis(1))).await;
    }
}

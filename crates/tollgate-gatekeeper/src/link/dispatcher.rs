//! Passes the events of decisions from the relay to the masters, and the orders of masters to the limiter. For every
//! master it has the gate's side of the protocol ([`Gate`]), which turns events into reports, and an outbox with the
//! encoded reports that the accounting connection sends.

use std::cell::{Cell, RefCell};
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tollgate_core::fleet::{ClockReading, Gate, GateSettings, Usage};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_wire::smockron;
use tollgate_wire::zmtp::Identity;

use super::identifier_cache::IdentifierCache;
use super::master_metrics::MasterMetrics;
use super::{ApplyOrder, LinkSettings, MasterSettings};
use crate::clock::Clock;
use crate::identifier::Name;
use crate::relay::{EventKind, Relay, RelayEvent};

/// The state that all tasks of the link share. They run on one thread, and no borrow is held across an await.
pub(super) struct Dispatcher {
    relay: Relay,
    clock: Clock,
    apply_order: ApplyOrder,
    /// For each rule of the relay, the index of its master, and the index of its domain there.
    rule_masters: Vec<(usize, u16)>,
    /// The identifiers of requests in flight, whose settlements and refunds have only hashes.
    identifiers: RefCell<IdentifierCache>,
    pub(super) masters: Vec<Master>,
    /// Notified when the relay has events, or an outbox has room again.
    pub(super) wake: Arc<Notify>,
}

/// One master as seen by this process.
pub(super) struct Master {
    pub(super) settings: MasterSettings,
    pub(super) metrics: Arc<MasterMetrics>,
    /// The identity of this process on an authenticated connection.
    pub(super) identity: Option<Identity>,
    /// The gate's side of the protocol.
    gate: RefCell<Gate<RandomState>>,
    pub(super) outbox: RefCell<Outbox>,
    /// Notified when the outbox has data.
    pub(super) posted: Notify,
    /// The time since which the control connection is up.
    control_since: Cell<Option<Moment>>,
}

/// The data to be sent to a connected master.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Encoded reports.
    pub(super) bytes: Vec<u8>,
    /// The master's subscriptions; empty while it is disconnected.
    pub(super) topics: Vec<Box<[u8]>>,
    /// Whether a Tollgate master is connected. If it becomes silent, reports are dropped, because they would wait in
    /// transit.
    is_tollgate_master: bool,
}

/// The interval at which the report about an identifier with debt is repeated, in case reports were lost.
const REPEAT_EVERY: Span = Span::from_secs(1);
/// The time without a message after which a Tollgate master counts as gone. It sends several beacons per second.
const SILENCE_MAX: Span = Span::from_secs(2);
/// The time within which a Tollgate master sends its first beacon. A master that does not is an original one.
const BEACON_MAX: Span = Span::from_secs(1);
/// The longest delay of a client that is accepted from a master.
const DELAY_MAX: Span = Span::from_secs(3600);
/// The maximum size of the outbox in bytes. A master that is too slow receives the latest counts when it catches up.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;
/// The number of events that are processed before other tasks run.
const BATCH_MAX: usize = 1024;
/// The time for which events are collected in the relay before they are processed. At a million decisions per second,
/// this is an eighth of its capacity.
const COLLECT_TIME: Duration = Duration::from_millis(1);
/// The number of times in a row that the link finds no events before it sleeps. The next decision then has to wake it,
/// which costs more than the decision itself, so this should happen once per pause in traffic.
const EMPTY_POLLS_MAX: u32 = 20;
/// The longest sleep without events.
const POLL_EVERY: Duration = Duration::from_millis(500);

impl Dispatcher {
    pub(super) fn new(
        settings: &LinkSettings,
        relay: Relay,
        metrics: &[Arc<MasterMetrics>],
        clock: Clock,
        apply_order: ApplyOrder,
        wake: Arc<Notify>,
    ) -> Self {
        let rule_masters = settings.masters.iter().enumerate();
        let rule_masters = rule_masters
            .flat_map(|(master, settings)| (0..).zip(&settings.rules).map(move |(domain, _)| (master, domain)));
        let masters = settings.masters.iter().zip(metrics).map(|(master, metrics)| Master {
            gate: RefCell::new(gate(master, settings)),
            identity: settings.keys.clone().zip(master.key).map(|(keys, server)| Identity::Client { keys, server }),
            settings: master.clone(),
            metrics: metrics.clone(),
            outbox: RefCell::default(),
            posted: Notify::new(),
            control_since: Cell::new(None),
        });
        let (rule_masters, masters) = (rule_masters.collect(), masters.collect());
        Self { relay, clock, apply_order, rule_masters, identifiers: RefCell::default(), masters, wake }
    }

    /// Processes events of the relay forever.
    pub(super) async fn run(self: std::rc::Rc<Self>) {
        let mut empty_polls = 0;
        loop {
            let processed = self.process_batch();
            self.masters.iter().for_each(|master| self.write_reports(master));
            empty_polls = if processed > 0 { 0 } else { empty_polls + 1 };
            if processed == BATCH_MAX {
                tokio::task::yield_now().await;
            } else if empty_polls < EMPTY_POLLS_MAX {
                tokio::time::sleep(COLLECT_TIME).await;
            } else if !self.relay.sleep() {
                self.sleep().await;
            }
        }
    }

    /// Processes a batch of events. Returns their number.
    fn process_batch(&self) -> usize {
        let mut processed = 0;
        while processed < BATCH_MAX
            && let Some(event) = self.relay.next()
        {
            if let Some(master) = self.record_event(&event) {
                self.write_reports(master);
            }
            self.relay.put_back(event);
            processed += 1;
        }
        processed
    }

    /// Waits for an event or for the next due report.
    async fn sleep(&self) {
        let now = self.clock.now();
        let due = self.masters.iter().filter_map(|master| master.due()).min();
        let pause = due.map_or(POLL_EVERY, |due| Duration::from(due.since(now)).min(POLL_EVERY));
        tokio::select! {
            () = self.wake.notified() => {}
            () = tokio::time::sleep(pause.max(COLLECT_TIME)) => {}
        }
    }

    /// Notes that the control connection to a master is up.
    pub(super) fn handle_connect(&self, place: usize) {
        self.masters[place].control_since.set(Some(self.clock.now()));
    }

    /// Handles a message from a master.
    pub(super) fn handle_message(&self, place: usize, frames: &[&[u8]]) {
        let master = &self.masters[place];
        let Ok(order) = smockron::read_order(frames) else {
            return MasterMetrics::count(&master.metrics.order_faults);
        };
        let reading = self.read_clock();
        let (instruction, is_heard) = {
            let mut gate = master.gate.borrow_mut();
            (gate.handle_order(&order, reading), gate.hears_master(reading.now))
        };
        master.outbox.borrow_mut().is_tollgate_master |= is_heard;
        master.metrics.heard.store(is_heard || master.hears_original(reading.now), Relaxed);
        if let Some((domain, instruction)) = instruction {
            MasterMetrics::count(&master.metrics.orders);
            let rule = &master.settings.rules[usize::from(domain)].rule;
            (self.apply_order)(rule, order.identifier, instruction, reading.now);
        }
        // A new master immediately receives all debts.
        self.wake.notify_one();
    }

    fn read_clock(&self) -> ClockReading {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ClockReading { now: self.clock.now(), wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Records an event. If its master is an original one, or is silent, returns the master: its reports must be
    /// written before the next event, because an original master counts messages, and each has its own time.
    fn record_event(&self, event: &RelayEvent) -> Option<&Master> {
        let &(place, domain) = self.rule_masters.get(usize::from(event.rule))?;
        let master = &self.masters[place];
        let mut gate = master.gate.borrow_mut();
        let mut identifiers = self.identifiers.borrow_mut();
        let now = self.clock.now();
        let room = &mut Name::new();
        match event.kind {
            EventKind::Usage { hash, ref identifier, count, held_until, clear, ref note } => {
                let identifier = identifier.write(room);
                identifiers.note(event.rule, hash, identifier);
                let toll = Toll { count, cpu: Span::ZERO };
                let note = note.as_deref().unwrap_or_default();
                gate.handle_usage(&Usage { domain, identifier, held_until, toll, clear, note }, now);
            }
            EventKind::Settlement { hash, cpu, clear } => {
                let identifier = identifiers.find(event.rule, hash)?;
                let toll = Toll { count: 0, cpu };
                gate.handle_usage(&Usage { domain, identifier, held_until: None, toll, clear, note: &[] }, now);
            }
            EventKind::Return { hash, count, clear } => {
                let identifier = identifiers.find(event.rule, hash)?;
                gate.handle_return(domain, identifier, count, clear);
            }
            EventKind::Refusal { ref identifier } => gate.handle_refusal(domain, identifier.write(room)),
        }
        (!gate.hears_master(now)).then_some(master)
    }

    /// Writes reports to the outbox, or drops them if no master is connected.
    fn write_reports(&self, master: &Master) {
        let reading = self.read_clock();
        let is_heard = master.gate.borrow().hears_master(reading.now);
        master.metrics.heard.store(is_heard || master.hears_original(reading.now), Relaxed);
        let (mut gate, mut outbox) = (master.gate.borrow_mut(), master.outbox.borrow_mut());
        master.metrics.identifiers.store(gate.identifiers() as u64, Relaxed);
        let is_silent = outbox.is_tollgate_master && !is_heard;
        loop {
            let is_behind = outbox.bytes.len() >= OUTBOX_BYTES_MAX;
            if is_behind && is_heard {
                // Counts accumulate, and one later report has all of them.
                break;
            }
            let Some(report) = gate.poll_report(reading) else { break };
            let is_wanted = !is_silent && outbox.wants(report.domain);
            let counter = match (is_wanted, is_behind) {
                (false, _) => &master.metrics.reports_dropped_away,
                (true, true) => &master.metrics.reports_dropped_behind,
                (true, false) => {
                    smockron::put_report(&mut outbox.bytes, &report);
                    &master.metrics.reports_sent
                }
            };
            MasterMetrics::count(counter);
        }
        if !outbox.bytes.is_empty() {
            master.posted.notify_one();
        }
    }
}

impl Master {
    /// The time of the next report, unless it waits for room.
    fn due(&self) -> Option<Moment> {
        let is_behind = self.outbox.borrow().bytes.len() >= OUTBOX_BYTES_MAX;
        if is_behind { None } else { self.gate.borrow().poll_timeout() }
    }

    /// Whether a Tollgate master is connected.
    pub(super) fn is_tollgate_master(&self) -> bool {
        self.outbox.borrow().is_tollgate_master
    }

    /// Whether an original master is connected. It sends nothing while it delays nobody, so an open connection
    /// without beacons is all that can be observed.
    fn hears_original(&self, now: Moment) -> bool {
        let is_silent = |since: Moment| now.since(since) >= BEACON_MAX;
        !self.is_tollgate_master() && self.control_since.get().is_some_and(is_silent)
    }

    /// Handles a lost control connection. The next peer may be another master.
    pub(super) fn handle_disconnect(&self) {
        self.control_since.set(None);
        self.gate.borrow_mut().handle_disconnect();
        self.outbox.borrow_mut().is_tollgate_master = false;
        self.metrics.heard.store(false, Relaxed);
    }
}

impl Outbox {
    /// Whether a subscription matches the topic of `domain`, which is the name followed by a NUL.
    fn wants(&self, domain: &[u8]) -> bool {
        self.topics.iter().any(|wanted| match wanted.split_last() {
            Some((0, name)) if name == domain => true,
            _ => domain.starts_with(wanted),
        })
    }

    /// Handles a lost connection. Unsent reports are not kept for the next one.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.topics.clear();
    }
}

/// The gate's side of the protocol with a master.
fn gate(master: &MasterSettings, settings: &LinkSettings) -> Gate<RandomState> {
    let settings = GateSettings {
        domains: master.rules.iter().map(|linked| linked.domain.as_bytes().into()).collect(),
        identifiers_max: settings.identifiers_max,
        repeat_every: REPEAT_EVERY,
        silence_max: SILENCE_MAX,
        delay_max: DELAY_MAX,
        log_info: settings.log_info,
    };
    Gate::new(settings, getrandom::u64().expect("the system has random numbers"), RandomState::new())
}

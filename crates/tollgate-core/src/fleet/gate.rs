//! The gate's side of the protocol: reports admitted requests to the master, and turns the master's orders into
//! instructions for the gate's limiter.
//!
//! Decisions are not made here. The same rule decides on the gate's own records, with or without a master,
//! and never waits for this module. A delay from the master is merged into the same record. The gate
//! therefore enforces the rule by itself, spaces the requests that it holds by one interval instead of
//! releasing all at once, and continues without a master.
//!
//! Nothing is queued for an unreachable master. The gate keeps one running count per identifier, so the next
//! report that arrives is complete.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::cmp::Ordering;
use core::hash::BuildHasher;

use super::bounded_map::{BoundedMap, EntryId, Evictable};
use super::{ClockReading, Command, Order, Report, Stamp, Status, Tally};
use crate::limit::Limit;
use crate::record::Record;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// The settings of a gate.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// The names of its domains on the wire.
    pub domains: Box<[Box<[u8]>]>,
    /// The maximum number of identifiers that are counted, over all domains.
    pub identifiers_max: usize,
    /// The interval at which the report about an identifier is repeated while it has debt, in case reports were lost.
    pub repeat_every: Span,
    /// The time without a message after which the master counts as gone.
    pub silence_max: Span,
    /// The longest delay that is accepted from a master.
    pub delay_max: Span,
    /// Whether reports include the cost of requests and, if the caller supplies it, their description.
    pub log_info: bool,
}

/// A request that the gate admitted, immediately or after a hold, or the toll of a request that ended.
#[derive(Clone, Copy, Debug)]
pub struct Usage<'a> {
    /// The index of the gate's domain.
    pub domain: u16,
    /// The key of the request as text.
    pub identifier: &'a [u8],
    /// The time at which a held request is forwarded.
    pub held_until: Option<Moment>,
    /// One request, or the CPU time of one that ended.
    pub toll: Toll,
    /// The time at which all debt is paid back, by the gate's own record.
    pub clear: Moment,
    /// A description of the request, if reports include it; empty otherwise, and for a toll.
    pub note: &'a [u8],
}

/// A change to the gate's own record of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Whether all debt is removed before the delay applies, because of a pardon.
    pub forgets: bool,
    /// The time before which nothing is admitted and from which there is room for one more request; `None` for no
    /// delay.
    pub next: Option<Moment>,
    /// The time before which not all debt is paid back, if known.
    pub clear: Option<Moment>,
}

impl Instruction {
    /// Applies the instruction to the gate's record of `limit` for the identifier.
    pub fn apply(self, limit: &Limit, record: &mut impl Record) {
        if self.forgets {
            record.clear(limit.words());
        }
        if let Some(clear) = self.clear.or_else(|| limit.clear_if_next(self.next?)) {
            limit.raise(record, clear);
        }
    }
}

/// One gate's side of the connection to one master.
pub struct Gate<S> {
    /// A random number that identifies this run of the gate.
    id: u64,
    settings: GateSettings,
    counts: BoundedMap<RunningCount, S>,
    /// Identifiers with usage that no report has mentioned, each at most once.
    news: VecDeque<EntryId>,
    /// Identifiers with debt, in the order in which their reports are repeated, each at most once.
    repeats: VecDeque<(Moment, EntryId)>,
    /// The number of entries at the front of `repeats` that are sent without waiting, because the gate has a new
    /// master or a new connection.
    urgent: usize,
    /// Refusals to report: domain and identifier.
    refusals: VecDeque<(u16, Box<[u8]>)>,
    /// The refusal in the current report, which borrows it.
    refusal: Option<(u16, Box<[u8]>)>,
    /// The clock of the current master; `None` without one.
    clock: Option<MasterClock>,
    /// The master that sent the last message, even if it is silent now; 0 for none.
    master: u64,
    /// The number of masters so far.
    master_number: u64,
    /// The number of messages from masters so far, and the time of the last one.
    messages: u64,
    last_message_at: Moment,
    /// `messages` and `last_message_at` at the last message of the previous master. Requests admitted after that may
    /// be unknown to that master, so they are reported to the current one.
    former_master: (u64, Moment),
    /// The serial number of the newest running count.
    serial: u64,
}

/// The master's clock as seen by this gate. It is never ahead, and behind by the shortest transit time so
/// far.
#[derive(Clone, Copy)]
struct MasterClock {
    master: u64,
    /// This gate's clock minus the master's, in nanoseconds.
    offset: i64,
    /// The time of the last message.
    updated_at: Moment,
}

/// The running count of one identifier, from which its [`Tally`] is made. Times are on this gate's clock.
#[derive(Default)]
struct RunningCount {
    /// [`Tally::serial`]; 0 for a count that has not begun.
    serial: u64,
    /// [`Tally::total`].
    total: Toll,
    /// The part of `total` that a previous master has charged, and `Gate::master_number` when it was computed.
    base: Toll,
    master_number: u64,
    /// `total` at the last message from the master before the last request, and the number of that message.
    total_at_message: Toll,
    message: u64,
    /// The number of the last pardon, and the time until which it is kept: no delay from before it lasts longer.
    era: u64,
    era_forgotten: Moment,
    /// [`Tally::began`], [`Tally::last`] and [`Tally::clear`].
    began: Moment,
    last: Moment,
    clear: Moment,
    /// Requests that no report has mentioned.
    unreported: u32,
    /// When the last request is forwarded, if it is held.
    held_until: Option<Moment>,
    /// The description of the last request, and the CPU time that is not reported yet.
    note: Box<[u8]>,
    cpu_unreported: Span,
    /// Whether the identifier is in `Gate::news` and in `Gate::repeats`.
    in_news: bool,
    in_repeats: bool,
}

/// The assumed drift of two clocks: one part in 10,000.
const DRIFT_DIVISOR: u64 = 10_000;
/// The maximum number of refusals that wait to be reported.
const REFUSALS_MAX: usize = 1024;

impl Evictable for RunningCount {
    fn clear_at(&self) -> Moment {
        self.clear.max(self.era_forgotten)
    }
}

impl<S: BuildHasher> Gate<S> {
    /// A gate that has no master yet. `id` is a random number that identifies this gate and this run of it.
    pub fn new(settings: GateSettings, id: u64, hasher: S) -> Self {
        Self {
            id,
            counts: BoundedMap::new(settings.identifiers_max, hasher),
            settings,
            news: VecDeque::new(),
            repeats: VecDeque::new(),
            urgent: 0,
            refusals: VecDeque::new(),
            refusal: None,
            clock: None,
            master: 0,
            master_number: 0,
            messages: 0,
            last_message_at: Moment::ZERO,
            former_master: (0, Moment::ZERO),
            serial: 0,
        }
    }

    /// Records an admitted request or a toll.
    pub fn handle_usage(&mut self, usage: &Usage<'_>, now: Moment) {
        self.notice_silence(now);
        let (id, _) = self.counts.find_or_insert(usage.domain, usage.identifier, now, || RunningCount::new(now));
        self.keep_current(id, now);
        let Some(running) = self.counts.value_mut(id) else { return };
        if running.message != self.messages {
            running.message = self.messages;
            running.total_at_message = running.total;
        }
        running.total.count = running.total.count.saturating_add(usage.toll.count);
        running.total.cpu = running.total.cpu + usage.toll.cpu;
        running.unreported = running.unreported.saturating_add(usage.toll.count.min(1) as u32);
        running.last = now;
        running.clear = running.clear.max(usage.clear);
        running.held_until = usage.held_until;
        running.cpu_unreported = running.cpu_unreported + usage.toll.cpu;
        if !usage.note.is_empty() {
            running.note = usage.note.into();
        }
        if !core::mem::replace(&mut running.in_news, true) {
            self.news.push_back(id);
            if self.counts.is_overgrown(self.news.len()) {
                self.news.retain(|&id| self.counts.entry(id).is_some());
            }
        }
    }

    /// Reverts a request that was admitted but not forwarded, because the backend was unreachable or the
    /// client left. The running count goes back, so that a master that counted the request does not charge
    /// the next one. `clear` is the new state of the gate's own record.
    pub fn handle_return(&mut self, domain: u16, identifier: &[u8], count: u64, clear: Moment) {
        let Some(id) = self.counts.find(domain, identifier) else { return };
        let Some(running) = self.counts.value_mut(id) else { return };
        // A previous master may have counted the rest, which cannot be reverted.
        running.total.count = running.total.count.saturating_sub(count).max(running.base.count);
        running.unreported = running.unreported.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        running.total_at_message.count = running.total_at_message.count.min(running.total.count);
        running.clear = running.clear.min(clear);
    }

    /// Records a refusal.
    pub fn handle_refusal(&mut self, domain: u16, identifier: &[u8]) {
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push_back((domain, identifier.into()));
        }
    }

    /// Handles a message from the master. Returns the domain whose record of the order's identifier must
    /// change, and the change.
    pub fn handle_order(&mut self, order: &Order<'_>, reading: ClockReading) -> Option<(u16, Instruction)> {
        if let Command::Beacon { stamp } = order.command {
            self.update_clock(stamp, reading.now);
        }
        let domain = self.domain(order.domain)?;
        Some((domain, self.instruction(domain, order, reading)?))
    }

    fn instruction(&mut self, domain: u16, order: &Order<'_>, reading: ClockReading) -> Option<Instruction> {
        let now = reading.now;
        let latest = now + self.settings.delay_max;
        let identifier = order.identifier;
        match order.command {
            Command::Beacon { .. } => None,
            // The master's monotonic clock is known, so its wall clock is not needed.
            Command::DelayUntil { .. } if self.clock.is_some() => None,
            Command::DelayUntil { until_ms } => {
                let wait = Span::from_millis(until_ms.saturating_sub(reading.wall_ms));
                let next = Some((now + wait).min(latest));
                (!wait.is_zero()).then_some(Instruction { forgets: false, next, clear: None })
            }
            Command::Delay { stamp, era, next, clear } => {
                let clock = self.update_clock(stamp, now);
                let next = clock.here(next);
                let excess = next.since(latest);
                let clear = clear.map(|clear| clock.here(clear).before(excess));
                let next = next.min(latest);
                let comparison = self.compare_era(domain, identifier, era, now);
                if comparison.is_lt() {
                    return None;
                }
                self.note_clear(domain, identifier, clear);
                Some(Instruction { forgets: comparison.is_gt(), next: Some(next), clear })
            }
            Command::Pardon { stamp, era } => {
                self.update_clock(stamp, now);
                let is_news = self.compare_era(domain, identifier, era, now).is_gt();
                is_news.then_some(Instruction { forgets: true, next: None, clear: None })
            }
        }
    }

    /// The next report for the master.
    pub fn poll_report(&mut self, reading: ClockReading) -> Option<Report<'_>> {
        let now = reading.now;
        self.notice_silence(now);
        // New reports come first, unless repeats are overdue.
        let overdue = self.repeats.front().is_some_and(|&(due, _)| due + self.settings.repeat_every <= now);
        if !overdue && let Some(id) = self.next_news(now) {
            return self.report(id, reading, true);
        }
        if let Some(id) = self.next_repeat(now) {
            return self.report(id, reading, false);
        }
        match self.next_news(now) {
            Some(id) => self.report(id, reading, true),
            None => self.next_refusal(reading),
        }
    }

    /// The time of the next poll, if no event happens before.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if !self.news.is_empty() || !self.refusals.is_empty() || self.urgent > 0 {
            return Some(Moment::ZERO);
        }
        self.repeats.front().map(|&(due, _)| due)
    }

    /// Handles a lost connection. The next peer may be another master.
    pub fn handle_disconnect(&mut self) {
        self.clock = None;
    }

    /// Whether a Tollgate master is connected and has sent a message within `silence_max`.
    pub fn hears_master(&self, now: Moment) -> bool {
        self.clock.is_some_and(|clock| now.since(clock.updated_at) <= self.settings.silence_max)
    }

    /// The number of identifiers that are counted.
    pub fn identifiers(&self) -> usize {
        self.counts.len()
    }

    /// Drops the clock of a master that has been silent for too long.
    fn notice_silence(&mut self, now: Moment) {
        if !self.hears_master(now) {
            self.clock = None;
        }
    }

    /// Records a message from a master, and returns the updated estimate of its clock.
    fn update_clock(&mut self, stamp: Stamp, now: Moment) -> MasterClock {
        let offset = offset(now, stamp.tick);
        let clock = match self.clock {
            Some(clock) if clock.master == stamp.master => {
                let drift = now.since(clock.updated_at).as_nanos() / DRIFT_DIVISOR;
                MasterClock {
                    offset: clock.offset.saturating_add_unsigned(drift).min(offset),
                    updated_at: now,
                    ..clock
                }
            }
            _ => {
                if stamp.master != self.master {
                    self.master_number += 1;
                    self.former_master = (self.messages, self.last_message_at);
                    self.master = stamp.master;
                }
                self.urgent = self.repeats.len();
                MasterClock { master: stamp.master, offset, updated_at: now }
            }
        };
        self.messages += 1;
        self.last_message_at = now;
        self.clock = Some(clock);
        clock
    }

    /// Compares the era of an order (the number of the last pardon) with the last known one. If the order's is later,
    /// the running count starts again with that era.
    fn compare_era(&mut self, domain: u16, identifier: &[u8], era: u64, now: Moment) -> Ordering {
        let known = self.counts.find(domain, identifier).and_then(|id| self.counts.entry(id));
        let comparison = era.cmp(&known.map_or(0, |entry| entry.value.era));
        if comparison.is_gt() {
            let forgotten_at = now + self.settings.delay_max;
            let (id, _) = self.counts.find_or_insert(domain, identifier, now, || RunningCount::new(now));
            if let Some(running) = self.counts.value_mut(id) {
                // A serial of zero makes the next report start a new count, which excludes the pardoned
                // requests.
                *running =
                    RunningCount { in_news: running.in_news, in_repeats: running.in_repeats, ..RunningCount::new(now) };
                running.era = era;
                running.era_forgotten = forgotten_at;
            }
        }
        comparison
    }

    /// Raises the debt of the running count to that of the master.
    fn note_clear(&mut self, domain: u16, identifier: &[u8], clear: Option<Moment>) {
        if let (Some(id), Some(clear)) = (self.counts.find(domain, identifier), clear)
            && let Some(running) = self.counts.value_mut(id)
        {
            running.clear = running.clear.max(clear);
        }
    }

    fn domain(&self, name: &[u8]) -> Option<u16> {
        self.settings.domains.iter().zip(0..).find(|(domain, _)| ***domain == *name).map(|(_, index)| index)
    }

    /// Numbers a new count, and after a change of master computes the part that the previous master has charged.
    fn keep_current(&mut self, id: EntryId, now: Moment) {
        let Some(running) = self.counts.value_mut(id) else { return };
        if running.serial == 0 {
            self.serial += 1;
            running.serial = self.serial;
            running.began = now;
            running.master_number = self.master_number;
        }
        if running.master_number != self.master_number {
            let (message, message_at) = self.former_master;
            running.base = running.known_at(message);
            running.began = running.began.max(message_at);
            running.master_number = self.master_number;
        }
    }

    /// The next identifier with unreported usage.
    fn next_news(&mut self, now: Moment) -> Option<EntryId> {
        while let Some(&id) = self.news.front() {
            if self.clock.is_none() && self.counts.entry(id).is_some_and(|entry| entry.value.unreported > 1) {
                // A Smockron master counts messages, so it gets one per request.
                return Some(id);
            }
            self.news.pop_front();
            let Some(running) = self.counts.value_mut(id) else { continue };
            running.in_news = false;
            let owes = running.clear > now;
            if owes && !core::mem::replace(&mut running.in_repeats, true) {
                self.repeats.push_back((now + self.settings.repeat_every, id));
                if self.counts.is_overgrown(self.repeats.len()) {
                    self.repeats.retain(|&(_, id)| self.counts.entry(id).is_some());
                }
            }
            return Some(id);
        }
        None
    }

    /// The next identifier whose report is due again.
    fn next_repeat(&mut self, now: Moment) -> Option<EntryId> {
        while let Some(&(due, id)) = self.repeats.front() {
            if now < due && self.urgent == 0 {
                return None;
            }
            self.repeats.pop_front();
            self.urgent = self.urgent.saturating_sub(1);
            let Some(running) = self.counts.value_mut(id) else { continue };
            if running.clear <= now {
                running.in_repeats = false;
                if !running.in_news {
                    self.counts.drop_if_clear(id, now);
                }
                continue;
            }
            self.repeats.push_back((now + self.settings.repeat_every, id));
            // A Smockron master would count a repeat as another request.
            if self.clock.is_some() {
                return Some(id);
            }
        }
        self.urgent = 0;
        None
    }

    /// The report about an identifier; `is_news` is false for a repeat.
    fn report(&mut self, id: EntryId, reading: ClockReading, is_news: bool) -> Option<Report<'_>> {
        let now = reading.now;
        self.keep_current(id, now);
        let running = self.counts.value_mut(id)?;
        let is_mention = is_news && running.unreported > 0;
        running.unreported = if self.clock.is_some() { 0 } else { running.unreported.saturating_sub(1) };
        let cpu = core::mem::replace(&mut running.cpu_unreported, Span::ZERO);
        let entry = self.counts.entry(id)?;
        let running = &entry.value;
        let wall_ms = |moment: Moment| {
            let ahead = reading.wall_ms.saturating_add(moment.since(now).as_millis_ceil());
            ahead.saturating_sub(now.since(moment).as_millis_ceil()).max(1)
        };
        let there = |moment| self.clock.map_or(moment, |clock| clock.there(moment));
        // The debt of requests that later messages mention is reported with them.
        let clear = if running.unreported > 0 { now } else { running.clear };
        let (base, began) = match self.clock {
            Some(_) => (running.base, running.began),
            // The peer may not be the master that sent the last message.
            None => (running.known_at(self.messages), running.began.max(self.last_message_at)),
        };
        let (status, delayed_until_ms) = match (is_mention, running.held_until) {
            (false, _) => (Status::Rejected, None),
            (true, None) => (Status::Accepted, None),
            (true, Some(until)) => (Status::Delayed, Some(wall_ms(until))),
        };
        Some(Report {
            domain: &self.settings.domains[usize::from(entry.domain)],
            status,
            identifier: &entry.identifier,
            received_ms: wall_ms(running.last),
            delayed_until_ms,
            note: &running.note,
            cpu: self.settings.log_info.then_some(cpu),
            tally: Some(Tally {
                gate: self.id,
                serial: running.serial,
                // Requests that later messages mention are excluded.
                total: Toll {
                    count: running.total.count.saturating_sub(u64::from(running.unreported)),
                    ..running.total
                },
                base,
                era: running.era,
                master: self.clock.map(|clock| clock.master),
                sent: there(now),
                began: there(began),
                last: there(running.last),
                clear: there(clear),
            }),
        })
    }

    fn next_refusal(&mut self, reading: ClockReading) -> Option<Report<'_>> {
        self.refusal = self.refusals.pop_front();
        let (domain, identifier) = self.refusal.as_ref()?;
        Some(Report {
            domain: &self.settings.domains[usize::from(*domain)],
            status: Status::Rejected,
            identifier,
            received_ms: reading.wall_ms.max(1),
            delayed_until_ms: None,
            note: &[],
            cpu: None,
            tally: None,
        })
    }
}

impl RunningCount {
    fn new(now: Moment) -> Self {
        Self { began: now, last: now, clear: now, ..Self::default() }
    }

    /// The part of the count that the master whose last message had the number `message` is assumed to have charged:
    /// all usage before that message. Later reports may not have reached it.
    fn known_at(&self, message: u64) -> Toll {
        if self.message == message { self.total_at_message } else { self.total }
    }
}

impl MasterClock {
    /// Converts the master's clock to this gate's.
    fn here(&self, there: Moment) -> Moment {
        Moment::from_nanos(there.as_nanos().saturating_add_signed(self.offset))
    }

    /// Converts this gate's clock to the master's.
    fn there(&self, here: Moment) -> Moment {
        Moment::from_nanos(here.as_nanos().saturating_add_signed(self.offset.saturating_neg()))
    }
}

fn offset(here: Moment, there: Moment) -> i64 {
    let difference = i128::from(here.as_nanos()) - i128::from(there.as_nanos());
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

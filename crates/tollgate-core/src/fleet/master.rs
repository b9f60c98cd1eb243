//! The master's side: the bookkeeper off the path.
//!
//! It hears what gates let through, keeps what every identifier owes, and tells the gates whom to delay. Three things make the obvious
//! bookkeeper unfair, and are different here. Charging a late report as of its arrival punishes clients for an outage that they
//! had no part in: here it is charged as of when it happened, and ignored when nobody can say when that was. Trusting a gate's clock
//! lets one bad clock block a client for a year: here times are clamped, and gates of our own speak in the master's time. And
//! counting messages loses what the network loses: a [`Tally`] is cumulative, so whatever arrives next makes up for it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::Range;

use super::account::{Account, Pardon, Timing};
use super::ledger::{Ledger, Place};
use super::overshoot::{self, DomainFigures, Overshoot};
use super::{Command, Order, Reading, Report, Stamp, Status, Tally};
use crate::limit::Limit;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// A protected thing, with what each of its callers may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name on the wire.
    pub name: Box<[u8]>,
    /// Zero or more limits, of which the strictest decides. Only limits that pay back at a pace: rates and budgets.
    pub limits: Vec<Limit>,
}

/// What a master is told when it starts.
#[derive(Clone, Debug)]
pub struct MasterSettings {
    /// What it keeps the books of.
    pub domains: Vec<Domain>,
    /// How many identifiers it knows at most, over all domains.
    pub identifiers_max: usize,
    /// How many gates of our own it knows at most.
    pub gates_max: usize,
    /// The oldest report that counts.
    pub lag_max: Span,
    /// How often it says that it is there.
    pub beacon_every: Span,
    /// The longest delay that is believed when a gate claims it, and how long a pardon is remembered.
    pub delay_max: Span,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many requests were charged.
    Charged(u64),
    /// Nothing new: a copy, or a tally that only repeats itself.
    Repeated,
    /// A refusal, which costs nothing.
    Refused,
    /// Too old to say when it was.
    Stale,
    /// A domain that this master does not keep the books of.
    UnknownDomain,
    /// Meant for another master, or for this one before it restarted.
    Stranger,
    /// Too many gates at once, or more countings than there is room for: only what the gate is owed was taken over.
    Untracked,
}

/// One identifier to tell the gates of a domain about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice<'a> {
    domain: &'a [u8],
    identifier: &'a [u8],
    command: Command,
    wait: Span,
}

impl<'a> Notice<'a> {
    /// The order to gates of our own.
    pub const fn own(&self) -> Order<'a> {
        Order { domain: self.domain, identifier: self.identifier, command: self.command }
    }

    /// The order to original gates, which know nothing of pardons.
    pub fn original(&self, wall_ms: u64) -> Option<Order<'a>> {
        let Command::Delay { .. } = self.command else { return None };
        let command = Command::DelayUntil { until_ms: wall_ms.saturating_add(self.wait.as_millis_ceil()) };
        Some(Order { command, ..self.own() })
    }
}

/// One step through everything that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot<'a> {
    /// Tell the newcomer this.
    Notice(Notice<'a>),
    /// Nothing in this stretch: come again.
    Onwards,
    /// That was all.
    Done,
}

/// The bookkeeper.
pub struct Master<S> {
    epoch: u64,
    settings: MasterSettings,
    domains: BTreeMap<Box<[u8]>, u16>,
    ledger: Ledger<Account, S>,
    /// Whom there is something to say about. Everyone is here at most once.
    pending: VecDeque<Place>,
    gates: BTreeMap<u64, GateSeen>,
    /// How many countings are kept, over all accounts.
    countings: usize,
    /// In the order of the domains.
    overshoots: Box<[Overshoot]>,
    beacon_due: Moment,
    last_era: u64,
}

#[derive(Clone, Copy)]
struct GateSeen {
    heard: Moment,
    transit: Span,
}

/// How many places a snapshot looks at in one step.
const SNAPSHOT_STEP: usize = 1024;
/// How many countings there is room for, per identifier on average.
const COUNTINGS_PER_IDENTIFIER: usize = 4;
/// So far apart two wall clocks are taken to be at most.
const CLOCKS_APART_MAX: Span = Span::from_secs(10);
/// A gate that has said nothing for this long is gone.
const GATE_SILENCE_MAX: Span = Span::from_secs(60);

impl<S: BuildHasher> Master<S> {
    /// A master that knows nobody. `epoch` tells it from every other master and from itself before a restart: a random number.
    pub fn new(settings: MasterSettings, epoch: u64, hasher: S, now: Moment) -> Self {
        let names = settings.domains.iter().zip(0..).map(|(domain, place)| (domain.name.clone(), place));
        Self {
            epoch,
            domains: names.collect(),
            overshoots: settings.domains.iter().map(|_| Overshoot::default()).collect(),
            ledger: Ledger::new(settings.identifiers_max, hasher),
            pending: VecDeque::new(),
            gates: BTreeMap::new(),
            countings: 0,
            beacon_due: now,
            last_era: 0,
            settings,
        }
    }

    /// What it keeps the books of.
    pub fn domains(&self) -> &[Domain] {
        &self.settings.domains
    }

    /// A gate said something.
    pub fn handle_report(&mut self, report: &Report<'_>, reading: Reading) -> Outcome {
        let Some(&domain) = self.domains.get(report.domain) else { return Outcome::UnknownDomain };
        match &report.tally {
            Some(tally) => self.handle_tally(domain, report, tally, reading),
            None => self.handle_single(domain, report, reading),
        }
    }

    /// The next identifier that there is something to say about.
    pub fn poll_notice(&mut self, now: Moment) -> Option<Notice<'_>> {
        let (place, command) = loop {
            let place = self.pending.pop_front()?;
            let Some(account) = self.ledger.value_mut(place) else { continue };
            account.queued = false;
            let pardon_due = core::mem::take(&mut account.pardon_due);
            if let Some(command) = self.command(place, now, pardon_due) {
                break (place, command);
            }
        };
        self.notice(place, command, now)
    }

    /// That this master is there, when it is time to say so again.
    pub fn poll_beacon(&mut self, now: Moment) -> Option<Order<'static>> {
        if now < self.beacon_due {
            return None;
        }
        self.beacon_due = now + self.settings.beacon_every;
        Some(self.beacon(now))
    }

    /// That this master is there: the first thing that a newcomer should hear.
    pub fn beacon(&self, now: Moment) -> Order<'static> {
        let stamp = Stamp { master: self.epoch, tick: now };
        Order { domain: &[], identifier: &[], command: Command::Beacon { stamp } }
    }

    /// When to poll next, if nothing is heard before.
    pub fn poll_timeout(&self) -> Moment {
        if self.pending.is_empty() { self.beacon_due } else { Moment::ZERO }
    }

    /// One step through everything in force in the domains that `covers` wants. A newcomer's `cursor` starts at 0.
    pub fn snapshot(&self, cursor: &mut usize, covers: impl Fn(&[u8]) -> bool, now: Moment) -> Snapshot<'_> {
        let end = (*cursor + SNAPSHOT_STEP).min(self.ledger.places());
        while *cursor < end {
            let found = self.ledger.at(*cursor);
            *cursor += 1;
            let Some((place, entry)) = found else { continue };
            if !covers(&self.settings.domains[usize::from(entry.domain)].name) {
                continue;
            }
            let pardoned = entry.value.pardon.is_some_and(|pardon| now < pardon.forget);
            let notice = self.command(place, now, pardoned).and_then(|command| self.notice(place, command, now));
            if let Some(notice) = notice {
                return Snapshot::Notice(notice);
            }
        }
        if end < self.ledger.places() { Snapshot::Onwards } else { Snapshot::Done }
    }

    /// An operator forgives what an identifier owes. Says whether there was such an identifier.
    pub fn pardon(&mut self, domain: &[u8], identifier: &[u8], reading: Reading) -> bool {
        let Some(&domain) = self.domains.get(domain) else { return false };
        let Some(place) = self.ledger.find(domain, identifier) else { return false };
        // Wall-clock milliseconds keep growing over restarts; the counter makes two pardons in one millisecond different.
        self.last_era = reading.wall_ms.max(self.last_era + 1);
        let pardon = Pardon { era: self.last_era, at: reading.now, forget: reading.now + self.settings.delay_max };
        if let Some(account) = self.ledger.value_mut(place) {
            account.forgive(pardon);
        }
        self.queue(place);
        true
    }

    /// How many places there are in the books: the bound of [`debts`](Self::debts).
    pub fn places(&self) -> usize {
        self.ledger.places()
    }

    /// Everything that is owed in these places: domain, identifier, and when each limit of the domain is paid back.
    pub fn debts(
        &self,
        places: Range<usize>,
        now: Moment,
    ) -> impl Iterator<Item = (&[u8], &[u8], impl ExactSizeIterator<Item = Moment>)> {
        let entries = places.filter_map(|index| self.ledger.at(index));
        entries.filter(move |(_, entry)| entry.value.clear > now).map(|(_, entry)| {
            let domain = &self.settings.domains[usize::from(entry.domain)];
            let records = domain.limits.iter().zip(&entry.value.records);
            (&*domain.name, &*entry.identifier, records.map(|(limit, record)| limit.clear_at(record)))
        })
    }

    /// Takes over a debt that was kept elsewhere: of the domain's limit at `place`, paid back at `clear`.
    pub fn restore(&mut self, domain: &[u8], identifier: &[u8], place: usize, clear: Moment, now: Moment) {
        let Some(&domain) = self.domains.get(domain) else { return };
        let limits = &self.settings.domains[usize::from(domain)].limits;
        let Some(limit) = limits.get(place) else { return };
        let limit = *limit;
        let account = self.account(domain, identifier, now);
        if let Some(account) = self.ledger.value_mut(account) {
            account.raise(&limit, place, clear);
        }
    }

    /// How many identifiers are known.
    pub fn identifiers(&self) -> usize {
        self.ledger.len()
    }

    /// How many identifiers were given up for others although they owed something.
    pub fn forgotten(&self) -> u64 {
        self.ledger.forgotten()
    }

    /// How many identifiers wait to be told about.
    pub fn backlog(&self) -> usize {
        self.pending.len()
    }

    /// How many gates of our own are there, and the longest that one's last word took, from when the master last spoke to it.
    pub fn gates(&self, now: Moment) -> (usize, Span) {
        let there = self.gates.values().filter(|gate| now.since(gate.heard) <= GATE_SILENCE_MAX);
        there.fold((0, Span::ZERO), |(count, lag), gate| (count + 1, lag.max(gate.transit)))
    }

    /// How each domain is kept.
    pub fn figures(&self, now: Moment) -> impl Iterator<Item = DomainFigures<'_>> {
        let (gates, delay) = self.gates(now);
        self.settings.domains.iter().zip(&self.overshoots).map(move |(domain, overshoot)| DomainFigures {
            name: &domain.name,
            bound: overshoot::bound(domain, gates, delay),
            overshoot: overshoot.read(now),
        })
    }

    /// How many identifiers in these places are delayed now.
    pub fn delayed(&self, places: Range<usize>, now: Moment) -> usize {
        let entries = places.filter_map(|index| self.ledger.at(index));
        let owing = entries.filter(|(_, entry)| entry.value.clear > now);
        let limits = |domain: u16| &self.settings.domains[usize::from(domain)].limits;
        owing.filter(|(_, entry)| entry.value.next(limits(entry.domain), now).is_some()).count()
    }

    /// An original gate's report: one request, by that gate's wall clock.
    fn handle_single(&mut self, domain: u16, report: &Report<'_>, reading: Reading) -> Outcome {
        if report.status == Status::Rejected {
            return Outcome::Refused;
        }
        let ago = |ms: u64| Span::from_millis(reading.wall_ms.saturating_sub(ms));
        if ago(report.received_ms) > self.settings.lag_max {
            return Outcome::Stale;
        }
        let at = reading.now.before(ago(report.delayed_until_ms.unwrap_or(report.received_ms)));
        let place = self.account(domain, report.identifier, reading.now);
        let limits = &self.settings.domains[usize::from(domain)].limits;
        if let Some(account) = self.ledger.value_mut(place) {
            // Whoever counts CPU time says what a request took; no more is believed than a delay would be.
            let cpu = report.cpu.unwrap_or_default().min(self.settings.delay_max);
            account.charge(limits, Toll { count: 1, cpu }, at);
        }
        self.note_overshoot(place, report, reading.now);
        self.queue_if_delayed(place, reading.now);
        Outcome::Charged(1)
    }

    /// A report of a gate of our own.
    fn handle_tally(&mut self, domain: u16, report: &Report<'_>, tally: &Tally, reading: Reading) -> Outcome {
        let now = reading.now;
        let Some(timing) = self.timing(report, tally, reading) else { return Outcome::Stranger };
        let known = self.know_gate(tally.gate, timing.transit, now);
        let place = self.account(domain, report.identifier, now);
        let limits = &self.settings.domains[usize::from(domain)].limits;
        let latest = now + self.settings.delay_max;
        let room_for_countings =
            self.countings < self.settings.identifiers_max.saturating_mul(COUNTINGS_PER_IDENTIFIER);
        let Some(account) = self.ledger.value_mut(place) else { return Outcome::Untracked };
        let tracked = account.seen.iter().any(|seen| seen.gate == tally.gate);
        let outcome = if tracked || (known && room_for_countings) {
            self.countings += usize::from(!tracked);
            account.count(limits, tally, &timing)
        } else {
            Outcome::Untracked
        };
        account.take_over(limits, tally, timing.clear, now, latest);
        self.note_overshoot(place, report, now);
        self.queue_if_delayed(place, now);
        outcome
    }

    /// When what a tally tells of happened, or nothing if it is on the clock of somebody else.
    fn timing(&self, report: &Report<'_>, tally: &Tally, reading: Reading) -> Option<Timing> {
        let now = reading.now;
        // As late as it can have been: the master's clock as the gate knows it is behind by what the way there took.
        let sent = if tally.master.is_some() { tally.sent.min(now) } else { tally.sent };
        let at = |moment: Moment| now.before(sent.since(moment));
        let (began, last) = (at(tally.began), at(tally.last));
        let Some(master) = tally.master else {
            // A gate that hears no master. When this was sent is as good as its wall clock: enough to see that it was stuck for long, and no more.
            let ago = Span::from_millis(reading.wall_ms.saturating_sub(report.received_ms));
            let stale = ago > now.since(last) + self.settings.lag_max + CLOCKS_APART_MAX;
            let clear = (!stale).then_some(now + tally.clear.since(tally.sent));
            return Some(Timing { began, last, clear, transit: Span::ZERO, stale });
        };
        if master != self.epoch {
            return None;
        }
        let transit = now.since(sent);
        let stale = transit > self.settings.lag_max;
        Some(Timing { began, last, clear: Some(tally.clear), transit, stale })
    }

    /// Notes that a gate was heard, and says whether it is among those that are known.
    fn know_gate(&mut self, gate: u64, transit: Span, now: Moment) -> bool {
        if !self.gates.contains_key(&gate) && self.gates.len() >= self.settings.gates_max {
            self.gates.retain(|_, seen| now.since(seen.heard) <= GATE_SILENCE_MAX);
            if self.gates.len() >= self.settings.gates_max {
                return false;
            }
        }
        self.gates.insert(gate, GateSeen { heard: now, transit });
        true
    }

    /// Notes how far ahead of its limits a report shows a caller to be.
    fn note_overshoot(&mut self, place: Place, report: &Report<'_>, now: Moment) {
        let Some(entry) = self.ledger.entry(place) else { return };
        let held = report.delayed_until_ms.map_or(0, |until| until.saturating_sub(report.received_ms));
        let held = Span::from_millis(held.min(self.settings.delay_max.as_millis_ceil()));
        let limits = self.settings.domains[usize::from(entry.domain)].limits.iter().zip(&entry.value.records);
        let ahead = limits.map(|(limit, record)| overshoot::ahead(limit, limit.clear_at(record), held, now)).max();
        if let Some(requests) = ahead.filter(|&requests| requests > 0) {
            self.overshoots[usize::from(entry.domain)].note(requests, now);
        }
    }

    fn queue_if_delayed(&mut self, place: Place, now: Moment) {
        let Some(entry) = self.ledger.entry(place) else { return };
        let limits = &self.settings.domains[usize::from(entry.domain)].limits;
        if entry.value.pardon_due || entry.value.next(limits, now).is_some() {
            self.queue(place);
        }
    }

    fn queue(&mut self, place: Place) {
        if let Some(account) = self.ledger.value_mut(place)
            && !core::mem::replace(&mut account.queued, true)
        {
            self.pending.push_back(place);
            if self.ledger.is_overgrown(self.pending.len()) {
                self.pending.retain(|&place| self.ledger.entry(place).is_some());
            }
        }
    }

    /// What there is to say. A delay speaks for the pardon before it, too: it carries that pardon's era.
    fn command(&self, place: Place, now: Moment, pardon_due: bool) -> Option<Command> {
        let entry = self.ledger.entry(place)?;
        let limits = &self.settings.domains[usize::from(entry.domain)].limits;
        let stamp = Stamp { master: self.epoch, tick: now };
        let era = entry.value.era();
        match entry.value.next(limits, now) {
            Some(next) => {
                let clear = (limits.len() == 1).then_some(entry.value.clear);
                Some(Command::Delay { stamp, era, next, clear })
            }
            None => pardon_due.then_some(Command::Pardon { stamp, era }),
        }
    }

    fn notice(&self, place: Place, command: Command, now: Moment) -> Option<Notice<'_>> {
        let entry = self.ledger.entry(place)?;
        let domain = &self.settings.domains[usize::from(entry.domain)].name;
        let wait = if let Command::Delay { next, .. } = command { next.since(now) } else { Span::ZERO };
        Some(Notice { domain, identifier: &entry.identifier, command, wait })
    }

    fn account(&mut self, domain: u16, identifier: &[u8], now: Moment) -> Place {
        let limits = self.settings.domains[usize::from(domain)].limits.len();
        let (place, given_up) = self.ledger.find_or_insert(domain, identifier, now, || Account::new(limits));
        self.countings -= given_up.map_or(0, |account| account.seen.len());
        place
    }
}

//! The master's side of the protocol: keeps the debt of every identifier, outside of the request path.
//!
//! The master receives reports about admitted requests and orders gates to delay clients. It differs from the
//! original, the master of Smockron, in three ways. First, a late report is charged at the time of the request, not of
//! its arrival, so that an outage does not punish clients; a report older than [`MasterSettings::lag_max`] is not
//! charged. Second, times are clamped and Tollgate gates use the master's clock, so that a wrong clock at a gate cannot
//! block a client for a year. Third, a [`Tally`] is cumulative, so that the next message repairs the loss of earlier
//! ones.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::Range;

use super::account::{Account, Pardon, Timing};
use super::bounded_map::{BoundedMap, EntryId};
use super::overshoot::{self, DomainOvershoot, Overshoot};
use super::{ClockReading, Command, Order, Report, Stamp, Status, Tally};
use crate::limit::Limit;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// A domain and the limits of its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The name on the wire.
    pub name: Box<[u8]>,
    /// Rates and budgets, of which the strictest applies. Other kinds of limits are not supported.
    pub limits: Vec<Limit>,
}

/// The settings of a master.
#[derive(Clone, Debug)]
pub struct MasterSettings {
    /// The domains that it accounts for.
    pub domains: Vec<Domain>,
    /// The maximum number of identifiers, over all domains.
    pub identifiers_max: usize,
    /// The maximum number of Tollgate gates.
    pub gates_max: usize,
    /// The maximum age of a report that is charged: since a Tollgate gate sent it, or since the arrival of the request
    /// at an original gate. For a Tollgate gate that does not know the master's clock, 10 s are added, because wall
    /// clocks differ.
    pub lag_max: Span,
    /// The interval of beacons, the heartbeats that carry the master's clock.
    pub beacon_every: Span,
    /// The longest delay that a gate's own debt record can cause. A pardon is kept for this time, because no delay from
    /// before it lasts longer.
    pub delay_max: Span,
}

/// The effect of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This many requests were charged; 0 if only CPU time was.
    Charged(u64),
    /// Nothing to charge: a repeated or outdated tally, or a count that began before a pardon, by a gate that had not
    /// received the pardon.
    Repeated,
    /// A refusal, which is not charged.
    Refused,
    /// Too old to be charged, by [`MasterSettings::lag_max`]. In a domain with one limit, the gate's own debt record
    /// was merged if its times are on this master's clock.
    Stale,
    /// The domain is unknown to this master.
    UnknownDomain,
    /// The report was made for another master, or for this one before a restart.
    Stranger,
    /// Too many gates or too many tallies: at most the gate's own debt record was merged.
    Untracked,
}

/// The delay or pardon of one identifier, to announce to the gates of its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice<'a> {
    domain: &'a [u8],
    identifier: &'a [u8],
    command: Command,
    /// The remaining time of a delay; zero for a pardon.
    wait: Span,
}

impl<'a> Notice<'a> {
    /// The order in the form for Tollgate gates.
    pub const fn own(&self) -> Order<'a> {
        Order { domain: self.domain, identifier: self.identifier, command: self.command }
    }

    /// The order in the form for original gates, which do not support pardons; `wall_ms` is the current time.
    pub fn original(&self, wall_ms: u64) -> Option<Order<'a>> {
        let Command::Delay { .. } = self.command else { return None };
        let command = Command::DelayUntil { until_ms: wall_ms.saturating_add(self.wait.as_millis_ceil()) };
        Some(Order { command, ..self.own() })
    }
}

/// One step of a snapshot of all delays and pardons, which a new subscriber receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot<'a> {
    /// Send this to the new subscriber.
    Notice(Notice<'a>),
    /// Nothing found in this step; call again.
    Onwards,
    /// The snapshot is complete.
    Done,
}

/// The master's state.
pub struct Master<S> {
    /// A random number that identifies this run of the master. It is not 0, which stands for no master in reports.
    epoch: u64,
    settings: MasterSettings,
    /// The index of each domain in the settings, by name.
    domains: BTreeMap<Box<[u8]>, u16>,
    accounts: BoundedMap<Account, S>,
    /// Identifiers to announce, each at most once.
    pending: VecDeque<EntryId>,
    /// The Tollgate gates that have sent reports, by [`Tally::gate`].
    gates: BTreeMap<u64, GateStatus>,
    /// The number of tallies in all accounts.
    tallies: usize,
    /// One per domain, in the same order.
    overshoots: Box<[Overshoot]>,
    beacon_due: Moment,
    /// The number of the last pardon.
    last_era: u64,
}

/// The last report of a gate.
#[derive(Clone, Copy)]
struct GateStatus {
    /// When it arrived.
    reported_at: Moment,
    /// [`Timing::transit`].
    transit: Span,
}

/// The number of entries that a snapshot examines per step, so that a step is short.
const SNAPSHOT_STEP: usize = 1024;
/// The maximum number of tallies, per identifier on average. It bounds the memory if many gates report the same
/// identifiers.
const TALLIES_PER_IDENTIFIER: usize = 4;
/// The assumed maximum difference between the wall clocks of a gate and a master. Synchronized clocks differ by less.
const CLOCKS_APART_MAX: Span = Span::from_secs(10);
/// The time without a report after which a gate counts as gone. Gates report admitted requests, and repeat the reports
/// about keys with debt, so a gate without traffic does not count.
const GATE_SILENCE_MAX: Span = Span::from_secs(60);

impl<S: BuildHasher> Master<S> {
    /// A master without state. `epoch` is a random number, not 0, which identifies this run of the master.
    pub fn new(settings: MasterSettings, epoch: u64, hasher: S, now: Moment) -> Self {
        let names = settings.domains.iter().zip(0..).map(|(domain, index)| (domain.name.clone(), index));
        Self {
            epoch,
            domains: names.collect(),
            overshoots: settings.domains.iter().map(|_| Overshoot::default()).collect(),
            accounts: BoundedMap::new(settings.identifiers_max, hasher),
            pending: VecDeque::new(),
            gates: BTreeMap::new(),
            tallies: 0,
            beacon_due: now,
            last_era: 0,
            settings,
        }
    }

    /// The domains that it accounts for.
    pub fn domains(&self) -> &[Domain] {
        &self.settings.domains
    }

    /// Handles a report from a gate.
    pub fn handle_report(&mut self, report: &Report<'_>, reading: ClockReading) -> Outcome {
        let Some(&domain) = self.domains.get(report.domain) else { return Outcome::UnknownDomain };
        match &report.tally {
            Some(tally) => self.handle_tally(domain, report, tally, reading),
            None => self.handle_single(domain, report, reading),
        }
    }

    /// The next delay or pardon to announce.
    pub fn poll_notice(&mut self, now: Moment) -> Option<Notice<'_>> {
        let (id, command) = loop {
            let id = self.pending.pop_front()?;
            let Some(account) = self.accounts.value_mut(id) else { continue };
            account.is_queued = false;
            let is_pardon_due = core::mem::take(&mut account.is_pardon_due);
            if let Some(command) = self.command(id, now, is_pardon_due) {
                break (id, command);
            }
        };
        self.notice(id, command, now)
    }

    /// A beacon, if one is due.
    pub fn poll_beacon(&mut self, now: Moment) -> Option<Order<'static>> {
        if now < self.beacon_due {
            return None;
        }
        self.beacon_due = now + self.settings.beacon_every;
        Some(self.beacon(now))
    }

    /// A beacon: the first message for a new subscriber.
    pub fn beacon(&self, now: Moment) -> Order<'static> {
        let stamp = Stamp { master: self.epoch, tick: now };
        Order { domain: &[], identifier: &[], command: Command::Beacon { stamp } }
    }

    /// The time of the next poll, if no report arrives before.
    pub fn poll_timeout(&self) -> Moment {
        if self.pending.is_empty() { self.beacon_due } else { Moment::ZERO }
    }

    /// One step of a snapshot of the domains for which `covers` is true. `cursor` starts at 0, and each step moves it.
    pub fn snapshot(&self, cursor: &mut usize, covers: impl Fn(&[u8]) -> bool, now: Moment) -> Snapshot<'_> {
        let end = (*cursor + SNAPSHOT_STEP).min(self.accounts.slots());
        while *cursor < end {
            let found = self.accounts.at(*cursor);
            *cursor += 1;
            let Some((id, entry)) = found else { continue };
            if !covers(&self.settings.domains[usize::from(entry.domain)].name) {
                continue;
            }
            let pardoned = entry.value.pardon.is_some_and(|pardon| now < pardon.forget);
            let notice = self.command(id, now, pardoned).and_then(|command| self.notice(id, command, now));
            if let Some(notice) = notice {
                return Snapshot::Notice(notice);
            }
        }
        if end < self.accounts.slots() { Snapshot::Onwards } else { Snapshot::Done }
    }

    /// Removes the debt of an identifier on behalf of an operator. Returns whether the identifier is known.
    pub fn pardon(&mut self, domain: &[u8], identifier: &[u8], reading: ClockReading) -> bool {
        let Some(&domain) = self.domains.get(domain) else { return false };
        let Some(id) = self.accounts.find(domain, identifier) else { return false };
        // Wall-clock milliseconds increase across restarts. The counter distinguishes two pardons in one
        // millisecond.
        self.last_era = reading.wall_ms.max(self.last_era + 1);
        let pardon = Pardon { era: self.last_era, at: reading.now, forget: reading.now + self.settings.delay_max };
        if let Some(account) = self.accounts.value_mut(id) {
            account.forgive(pardon);
        }
        self.queue(id);
        true
    }

    /// The number of slots used so far, which only grows: the bound of [`debts`](Self::debts) and
    /// [`delayed`](Self::delayed).
    pub fn slots(&self) -> usize {
        self.accounts.slots()
    }

    /// All debt in these slots: domain, identifier, and the time at which each limit of the domain is paid
    /// back.
    pub fn debts(
        &self,
        slots: Range<usize>,
        now: Moment,
    ) -> impl Iterator<Item = (&[u8], &[u8], impl ExactSizeIterator<Item = Moment>)> {
        let entries = slots.filter_map(|index| self.accounts.at(index));
        entries.filter(move |(_, entry)| entry.value.clear > now).map(|(_, entry)| {
            let domain = &self.settings.domains[usize::from(entry.domain)];
            let records = domain.limits.iter().zip(&entry.value.records);
            (&*domain.name, &*entry.identifier, records.map(|(limit, record)| limit.clear_at(record)))
        })
    }

    /// Restores a debt that [`debts`](Self::debts) returned: the domain's limit at index `limit_index` is paid back at
    /// `clear`.
    pub fn restore(&mut self, domain: &[u8], identifier: &[u8], limit_index: usize, clear: Moment, now: Moment) {
        let Some(&domain) = self.domains.get(domain) else { return };
        let limits = &self.settings.domains[usize::from(domain)].limits;
        let Some(limit) = limits.get(limit_index) else { return };
        let limit = *limit;
        let account = self.account(domain, identifier, now);
        if let Some(account) = self.accounts.value_mut(account) {
            account.raise(&limit, limit_index, clear);
        }
    }

    /// The number of identifiers.
    pub fn identifiers(&self) -> usize {
        self.accounts.len()
    }

    /// The number of identifiers so far that were evicted with debt, or with a pardon that had to be kept.
    pub fn evicted_with_debt(&self) -> u64 {
        self.accounts.evicted_with_debt
    }

    /// The number of Tollgate gates that sent a report in the last minute, and the longest of their message delays. The
    /// delay of a gate is the sum of the transit time of its last report and the shortest transit time of the
    /// master's messages to it. Gates beyond [`MasterSettings::gates_max`] do not count.
    pub fn gates(&self, now: Moment) -> (usize, Span) {
        let live = self.gates.values().filter(|gate| now.since(gate.reported_at) <= GATE_SILENCE_MAX);
        live.fold((0, Span::ZERO), |(count, delay), gate| (count + 1, delay.max(gate.transit)))
    }

    /// The overshoot of each domain and its bound. `original_gates` is the number of connected original gates. They are
    /// not in [`gates`](Self::gates), because their reports do not identify them.
    pub fn overshoots(&self, original_gates: usize, now: Moment) -> impl Iterator<Item = DomainOvershoot<'_>> {
        let (gates, delay) = self.gates(now);
        let gates = gates + original_gates;
        self.settings.domains.iter().zip(&self.overshoots).map(move |(domain, overshoot)| DomainOvershoot {
            name: &domain.name,
            bound: overshoot::bound(domain, gates, delay),
            overshoot: overshoot.read(now),
        })
    }

    /// The number of identifiers in these slots that are delayed now.
    pub fn delayed(&self, slots: Range<usize>, now: Moment) -> usize {
        let entries = slots.filter_map(|index| self.accounts.at(index));
        let owing = entries.filter(|(_, entry)| entry.value.clear > now);
        let limits = |domain: u16| &self.settings.domains[usize::from(domain)].limits;
        owing.filter(|(_, entry)| entry.value.room_from(limits(entry.domain), now).is_some()).count()
    }

    /// Handles a report without a tally: one request at an original gate, timed by that gate's wall clock, or a refusal
    /// of any gate.
    fn handle_single(&mut self, domain: u16, report: &Report<'_>, reading: ClockReading) -> Outcome {
        if report.status == Status::Rejected {
            return Outcome::Refused;
        }
        let ago = |ms: u64| Span::from_millis(reading.wall_ms.saturating_sub(ms));
        if ago(report.received_ms) > self.settings.lag_max {
            return Outcome::Stale;
        }
        let at = reading.now.before(ago(report.delayed_until_ms.unwrap_or(report.received_ms)));
        let id = self.account(domain, report.identifier, reading.now);
        let limits = &self.settings.domains[usize::from(domain)].limits;
        if let Some(account) = self.accounts.value_mut(id) {
            // Gates that measure CPU time report it. It is capped like a delay.
            let cpu = report.cpu.unwrap_or_default().min(self.settings.delay_max);
            account.charge(limits, Toll { count: 1, cpu }, at);
        }
        self.record_overshoot(id, report, reading.now);
        self.queue_if_delayed(id, reading.now);
        Outcome::Charged(1)
    }

    /// Handles a report of a Tollgate gate.
    fn handle_tally(&mut self, domain: u16, report: &Report<'_>, tally: &Tally, reading: ClockReading) -> Outcome {
        let now = reading.now;
        let Some(timing) = self.timing(report, tally, reading) else { return Outcome::Stranger };
        let is_gate_tracked = self.track_gate(tally.gate, timing.transit, now);
        let id = self.account(domain, report.identifier, now);
        let limits = &self.settings.domains[usize::from(domain)].limits;
        let latest = now + self.settings.delay_max;
        let has_room_for_tally = self.tallies < self.settings.identifiers_max.saturating_mul(TALLIES_PER_IDENTIFIER);
        let Some(account) = self.accounts.value_mut(id) else { return Outcome::Untracked };
        let has_tally = account.tallies.iter().any(|known| known.gate == tally.gate);
        let outcome = if has_tally || (is_gate_tracked && has_room_for_tally) {
            self.tallies += usize::from(!has_tally);
            account.count(limits, tally, &timing)
        } else {
            Outcome::Untracked
        };
        account.take_over(limits, tally, timing.clear, now, latest);
        self.record_overshoot(id, report, now);
        self.queue_if_delayed(id, now);
        outcome
    }

    /// The times of a tally on this master's clock; `None` if it is on another master's clock.
    fn timing(&self, report: &Report<'_>, tally: &Tally, reading: ClockReading) -> Option<Timing> {
        let now = reading.now;
        let Some(master) = tally.master else {
            // The transit time is unknown, so these are the latest possible times.
            let at = |moment: Moment| now.before(tally.sent.since(moment));
            let (began, last) = (at(tally.began), at(tally.last));
            // The gate does not know this master's clock. `ago` is the time since the last request by two wall clocks,
            // which may differ. It is therefore only used to detect a message that was stuck for long.
            let ago = Span::from_millis(reading.wall_ms.saturating_sub(report.received_ms));
            let is_stale = ago > now.since(last) + self.settings.lag_max + CLOCKS_APART_MAX;
            let clear = (!is_stale).then_some(now + tally.clear.since(tally.sent));
            return Some(Timing { began, last, clear, transit: Span::ZERO, is_stale });
        };
        if master != self.epoch {
            return None;
        }
        // Reports of several seconds arrive together if this master was paused or packets were lost. If they were
        // charged at their arrival, they would count as a burst. The gate's copy of the master's clock is behind by the
        // shortest transit time, so these times are early by that.
        let (began, last) = (tally.began.min(now), tally.last.min(now));
        let transit = now.since(tally.sent);
        let is_stale = transit > self.settings.lag_max;
        Some(Timing { began, last, clear: Some(tally.clear), transit, is_stale })
    }

    /// Records a message from a gate. Returns whether the gate is tracked.
    fn track_gate(&mut self, gate: u64, transit: Span, now: Moment) -> bool {
        if !self.gates.contains_key(&gate) && self.gates.len() >= self.settings.gates_max {
            self.gates.retain(|_, status| now.since(status.reported_at) <= GATE_SILENCE_MAX);
            if self.gates.len() >= self.settings.gates_max {
                return false;
            }
        }
        self.gates.insert(gate, GateStatus { reported_at: now, transit });
        true
    }

    /// Records by how many requests an identifier exceeds its limits after a report.
    fn record_overshoot(&mut self, id: EntryId, report: &Report<'_>, now: Moment) {
        let Some(entry) = self.accounts.entry(id) else { return };
        let held = report.delayed_until_ms.map_or(0, |until| until.saturating_sub(report.received_ms));
        let held = Span::from_millis(held.min(self.settings.delay_max.as_millis_ceil()));
        let limits = self.settings.domains[usize::from(entry.domain)].limits.iter().zip(&entry.value.records);
        let excess = limits.map(|(limit, record)| overshoot::excess(limit, limit.clear_at(record), held, now)).max();
        if let Some(requests) = excess.filter(|&requests| requests > 0) {
            self.overshoots[usize::from(entry.domain)].note(requests, now);
        }
    }

    /// Queues an identifier for an announcement if it is delayed, or if a pardon must be announced.
    fn queue_if_delayed(&mut self, id: EntryId, now: Moment) {
        let Some(entry) = self.accounts.entry(id) else { return };
        let limits = &self.settings.domains[usize::from(entry.domain)].limits;
        if entry.value.is_pardon_due || entry.value.room_from(limits, now).is_some() {
            self.queue(id);
        }
    }

    fn queue(&mut self, id: EntryId) {
        if let Some(account) = self.accounts.value_mut(id)
            && !core::mem::replace(&mut account.is_queued, true)
        {
            self.pending.push_back(id);
            if self.accounts.is_overgrown(self.pending.len()) {
                self.pending.retain(|&id| self.accounts.entry(id).is_some());
            }
        }
    }

    /// The command to send: a delay if the identifier is delayed, otherwise the pardon if `is_pardon_due`. A delay
    /// carries the era of the pardon before it, so it announces that pardon too.
    fn command(&self, id: EntryId, now: Moment, is_pardon_due: bool) -> Option<Command> {
        let entry = self.accounts.entry(id)?;
        let limits = &self.settings.domains[usize::from(entry.domain)].limits;
        let stamp = Stamp { master: self.epoch, tick: now };
        let era = entry.value.era();
        match entry.value.room_from(limits, now) {
            Some(next) => {
                // A rule of a gate has one limit. If the domain has several, `clear` may be that of another limit, and
                // the gate would delay the identifier too long.
                let clear = (limits.len() == 1).then_some(entry.value.clear);
                Some(Command::Delay { stamp, era, next, clear })
            }
            None => is_pardon_due.then_some(Command::Pardon { stamp, era }),
        }
    }

    fn notice(&self, id: EntryId, command: Command, now: Moment) -> Option<Notice<'_>> {
        let entry = self.accounts.entry(id)?;
        let domain = &self.settings.domains[usize::from(entry.domain)].name;
        let wait = if let Command::Delay { next, .. } = command { next.since(now) } else { Span::ZERO };
        Some(Notice { domain, identifier: &entry.identifier, command, wait })
    }

    /// Finds or creates the account of an identifier.
    fn account(&mut self, domain: u16, identifier: &[u8], now: Moment) -> EntryId {
        let limits = self.settings.domains[usize::from(domain)].limits.len();
        let (id, evicted) = self.accounts.find_or_insert(domain, identifier, now, || Account::new(limits));
        self.tallies -= evicted.map_or(0, |account| account.tallies.len());
        id
    }
}

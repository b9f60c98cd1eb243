//! The master's state of one identifier: its debt, and the last tally of each gate about it.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::bounded_map::Evictable;
use super::{Outcome, Tally};
use crate::limit::{Limit, Room};
use crate::record::PlainRecord;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// The debt of one identifier in one domain, and the last tally of each gate about it.
pub(super) struct Account {
    /// The debt by each limit of the domain. Records of rates and budgets have one word.
    pub(super) records: Box<[PlainRecord<[u64; 1]>]>,
    /// The time at which all debt is paid back, by the slowest limit.
    pub(super) clear: Moment,
    /// At most one for each gate.
    pub(super) tallies: Vec<LastTally>,
    /// The last pardon.
    pub(super) pardon: Option<Pardon>,
    /// Whether the identifier waits to be announced to the gates.
    pub(super) is_queued: bool,
    /// Whether the pardon must be announced, because a gate may not have received it.
    pub(super) is_pardon_due: bool,
}

/// The removal of an identifier's debt.
#[derive(Clone, Copy)]
pub(super) struct Pardon {
    /// The number of the pardon; later ones are larger.
    pub(super) era: u64,
    /// When it was given.
    pub(super) at: Moment,
    /// The time from which it can be forgotten: no delay from before it lasts longer.
    pub(super) forget: Moment,
}

/// The last tally of one gate about one identifier.
#[derive(Clone, Copy)]
pub(super) struct LastTally {
    /// [`Tally::gate`].
    pub(super) gate: u64,
    /// [`Tally::serial`].
    serial: u64,
    /// [`Tally::total`], which is charged already.
    total: Toll,
    /// The time of the last request that it counts, on this master's clock.
    last: Moment,
}

/// The times of a tally on this master's clock.
pub(super) struct Timing {
    /// The earliest possible time of the first request beyond [`Tally::base`].
    pub(super) began: Moment,
    /// The time of the last request.
    pub(super) last: Moment,
    /// The time at which all debt is paid back by the gate's own record; `None` if it cannot be converted.
    pub(super) clear: Option<Moment>,
    /// The longest time that the report can have taken; zero if unknown.
    pub(super) transit: Span,
    /// Whether the report is too old to be charged.
    pub(super) is_stale: bool,
}

impl Evictable for Account {
    fn clear_at(&self) -> Moment {
        self.pardon.map_or(self.clear, |pardon| self.clear.max(pardon.forget))
    }
}

impl Account {
    pub(super) fn new(limits: usize) -> Self {
        let records = vec![PlainRecord::default(); limits].into_boxed_slice();
        Self { records, clear: Moment::ZERO, tallies: Vec::new(), pardon: None, is_queued: false, is_pardon_due: false }
    }

    /// The number of the last pardon; 0 for none.
    pub(super) fn era(&self) -> u64 {
        self.pardon.map_or(0, |pardon| pardon.era)
    }

    /// Removes the debt. Reports from gates that have not received the pardon cannot restore it.
    pub(super) fn forgive(&mut self, pardon: Pardon) {
        self.records.fill(PlainRecord::default());
        self.clear = Moment::ZERO;
        self.pardon = Some(pardon);
        self.is_pardon_due = true;
    }

    /// Charges `toll` to all limits at the time `at`.
    pub(super) fn charge(&mut self, limits: &[Limit], toll: Toll, at: Moment) {
        for (limit, record) in limits.iter().zip(&mut self.records) {
            limit.charge(record, toll, at);
            self.clear = self.clear.max(limit.clear_at(record));
        }
    }

    /// Raises the debt by one limit: it is paid back no earlier than `clear`.
    pub(super) fn raise(&mut self, limit: &Limit, limit_index: usize, clear: Moment) {
        if let Some(record) = self.records.get_mut(limit_index) {
            limit.raise(record, clear);
            self.clear = self.clear.max(limit.clear_at(record));
        }
    }

    /// The time from which there is room for one more request; `None` if there is room now.
    pub(super) fn room_from(&self, limits: &[Limit], now: Moment) -> Option<Moment> {
        let waits =
            limits.iter().zip(&self.records).filter_map(|(limit, record)| match limit.room(record, Toll::ONE, now) {
                Room::From(moment) => Some(moment),
                Room::Now | Room::OnRelease | Room::Never => None,
            });
        waits.max()
    }

    /// Charges the part of a tally that no earlier tally of the same count has reported.
    pub(super) fn count(&mut self, limits: &[Limit], tally: &Tally, timing: &Timing) -> Outcome {
        let index = self.tallies.iter().position(|known| known.gate == tally.gate);
        let before = index.map(|index| self.tallies[index]);
        let (charged, cpu, since) = match before {
            Some(known) if known.serial > tally.serial => return Outcome::Repeated,
            Some(known) if known.serial == tally.serial => {
                (tally.total.count.saturating_sub(known.total.count), known.total.cpu_missing(tally.total), known.last)
            }
            _ => {
                (tally.total.count.saturating_sub(tally.base.count), tally.base.cpu_missing(tally.total), timing.began)
            }
        };
        let is_news = charged > 0 || !cpu.is_zero();
        if before.is_none_or(|known| is_news || known.serial < tally.serial) {
            let last = LastTally { gate: tally.gate, serial: tally.serial, total: tally.total, last: timing.last };
            match index {
                Some(index) => self.tallies[index] = last,
                None => self.tallies.push(last),
            }
        }
        let pardoned = self.pardon.is_some_and(|pardon| tally.era < pardon.era && timing.began < pardon.at);
        if timing.is_stale {
            return Outcome::Stale;
        }
        if !is_news || pardoned {
            return Outcome::Repeated;
        }
        // Only the time of the last request is known. The earlier ones are charged as early as possible, so
        // that nobody is blocked for debt that was paid back long ago. Debt that was not paid back is also in
        // the gate's own record, which `take_over` merges.
        if charged > 1 {
            self.charge(limits, Toll { count: charged - 1, cpu: Span::ZERO }, since.min(timing.last));
        }
        self.charge(limits, Toll { count: charged.min(1), cpu }, timing.last);
        Outcome::Charged(charged)
    }

    /// Raises the debt to that of the gate's own record, which is paid back at `clear` and never exceeds the true debt.
    /// This restores debt after a restart of the master. No delay that results from it lasts beyond `latest`.
    pub(super) fn take_over(
        &mut self,
        limits: &[Limit],
        tally: &Tally,
        clear: Option<Moment>,
        now: Moment,
        latest: Moment,
    ) {
        if tally.era < self.era() {
            self.is_pardon_due = true;
            return;
        }
        if tally.era > self.era() {
            // A pardon from before this master started.
            self.pardon = Some(Pardon { era: tally.era, at: Moment::ZERO, forget: latest });
        }
        if let ([limit], Some(clear)) = (limits, clear)
            && clear > now
        {
            let clear_max = limit.clear_if_next(latest).unwrap_or_default();
            self.raise(limit, 0, clear.min(clear_max));
        }
    }
}

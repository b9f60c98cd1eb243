//! The debt of one identifier, and the last tally of each gate about it.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::bounded_map::Evictable;
use super::{Outcome, Tally};
use crate::limit::{Limit, Room};
use crate::record::PlainRecord;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// The debt of one identifier, and the last tally of each gate about it.
pub(super) struct Account {
    /// One for each limit of the domain. Rates and budgets have one word.
    pub(super) records: Box<[PlainRecord<[u64; 1]>]>,
    /// The time at which all debt is paid back.
    pub(super) clear: Moment,
    pub(super) seen: Vec<LastTally>,
    pub(super) pardon: Option<Pardon>,
    pub(super) queued: bool,
    /// Whether a gate may not know of the pardon.
    pub(super) pardon_due: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Pardon {
    pub(super) era: u64,
    pub(super) at: Moment,
    pub(super) forget: Moment,
}

/// The last tally of one gate about one identifier.
#[derive(Clone, Copy)]
pub(super) struct LastTally {
    pub(super) gate: u64,
    pub(super) serial: u64,
    pub(super) told: Toll,
    pub(super) last: Moment,
}

/// The times of a tally on this master's clock.
pub(super) struct Timing {
    pub(super) began: Moment,
    pub(super) last: Moment,
    /// The time at which the gate's own debt record is paid back, if it is on this master's clock.
    pub(super) clear: Option<Moment>,
    /// The most time that the message can have taken.
    pub(super) transit: Span,
    pub(super) stale: bool,
}

impl Evictable for Account {
    fn clear_at(&self) -> Moment {
        self.pardon.map_or(self.clear, |pardon| self.clear.max(pardon.forget))
    }
}

impl Account {
    pub(super) fn new(limits: usize) -> Self {
        let records = vec![PlainRecord::default(); limits].into_boxed_slice();
        Self { records, clear: Moment::ZERO, seen: Vec::new(), pardon: None, queued: false, pardon_due: false }
    }

    pub(super) fn era(&self) -> u64 {
        self.pardon.map_or(0, |pardon| pardon.era)
    }

    /// Removes the debt. Reports from gates that do not know of the pardon cannot restore it.
    pub(super) fn forgive(&mut self, pardon: Pardon) {
        self.records.fill(PlainRecord::default());
        self.clear = Moment::ZERO;
        self.pardon = Some(pardon);
        self.pardon_due = true;
    }

    pub(super) fn charge(&mut self, limits: &[Limit], toll: Toll, at: Moment) {
        for (limit, record) in limits.iter().zip(&mut self.records) {
            limit.charge(record, toll, at);
            self.clear = self.clear.max(limit.clear_at(record));
        }
    }

    pub(super) fn raise(&mut self, limit: &Limit, limit_index: usize, clear: Moment) {
        if let Some(record) = self.records.get_mut(limit_index) {
            limit.raise(record, clear);
            self.clear = self.clear.max(limit.clear_at(record));
        }
    }

    /// The time from which there is room for one more request; `None` if there is room now.
    pub(super) fn next(&self, limits: &[Limit], now: Moment) -> Option<Moment> {
        let waits =
            limits.iter().zip(&self.records).filter_map(|(limit, record)| match limit.room(record, Toll::ONE, now) {
                Room::From(moment) => Some(moment),
                Room::Now | Room::OnRelease | Room::Never => None,
            });
        waits.max()
    }

    /// Charges the new part of a tally.
    pub(super) fn count(&mut self, limits: &[Limit], tally: &Tally, timing: &Timing) -> Outcome {
        let ours = self.seen.iter().position(|seen| seen.gate == tally.gate);
        let before = ours.map(|index| self.seen[index]);
        let (charged, cpu, since) = match before {
            Some(seen) if seen.serial > tally.serial => return Outcome::Repeated,
            Some(seen) if seen.serial == tally.serial => {
                (tally.total.count.saturating_sub(seen.told.count), seen.told.cpu_missing(tally.total), seen.last)
            }
            _ => {
                (tally.total.count.saturating_sub(tally.base.count), tally.base.cpu_missing(tally.total), timing.began)
            }
        };
        let is_news = charged > 0 || !cpu.is_zero();
        if before.is_none_or(|seen| is_news || seen.serial < tally.serial) {
            let seen = LastTally { gate: tally.gate, serial: tally.serial, told: tally.total, last: timing.last };
            match ours {
                Some(index) => self.seen[index] = seen,
                None => self.seen.push(seen),
            }
        }
        let pardoned = self.pardon.is_some_and(|pardon| tally.era < pardon.era && timing.began < pardon.at);
        if timing.stale {
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

    /// Raises the debt to that of the gate's own record, which never exceeds the true debt. This restores
    /// debt after a restart of the master. A claimed delay is capped at `latest`.
    pub(super) fn take_over(
        &mut self,
        limits: &[Limit],
        tally: &Tally,
        clear: Option<Moment>,
        now: Moment,
        latest: Moment,
    ) {
        if tally.era < self.era() {
            self.pardon_due = true;
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

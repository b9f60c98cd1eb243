//! What one identifier owes, and who said so.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::ledger::Standing;
use super::{Outcome, Tally};
use crate::limit::{Limit, Room};
use crate::record::Record;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// What one identifier owes, and who said so.
pub(super) struct Account {
    pub(super) records: Box<[Slim]>,
    /// When all is paid back.
    pub(super) clear: Moment,
    pub(super) seen: Vec<Seen>,
    pub(super) pardon: Option<Pardon>,
    pub(super) queued: bool,
    /// Some gate has not heard of the pardon.
    pub(super) pardon_due: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Pardon {
    pub(super) era: u64,
    pub(super) at: Moment,
    pub(super) forget: Moment,
}

/// The last that one gate said about one identifier.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) gate: u64,
    pub(super) serial: u64,
    pub(super) told: Toll,
    pub(super) last: Moment,
}

/// When things happened, on this master's clock.
pub(super) struct Timing {
    pub(super) began: Moment,
    pub(super) last: Moment,
    /// When the gate's own books are balanced, if they are on this master's clock.
    pub(super) clear: Option<Moment>,
    /// How long ago it was said, at most.
    pub(super) transit: Span,
    pub(super) stale: bool,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Slim {
    aux: u32,
    word: u64,
}

impl Record for Slim {
    fn aux(&self) -> u32 {
        self.aux
    }

    fn set_aux(&mut self, aux: u32) {
        self.aux = aux;
    }

    fn word(&self, _index: usize) -> u64 {
        self.word
    }

    fn set_word(&mut self, _index: usize, value: u64) {
        self.word = value;
    }
}

impl Standing for Account {
    fn clear_at(&self) -> Moment {
        self.pardon.map_or(self.clear, |pardon| self.clear.max(pardon.forget))
    }
}

impl Account {
    pub(super) fn new(limits: usize) -> Self {
        let records = vec![Slim::default(); limits].into_boxed_slice();
        Self { records, clear: Moment::ZERO, seen: Vec::new(), pardon: None, queued: false, pardon_due: false }
    }

    pub(super) fn era(&self) -> u64 {
        self.pardon.map_or(0, |pardon| pardon.era)
    }

    /// Forgets what is owed; whoever says otherwise does not know of the pardon.
    pub(super) fn forgive(&mut self, pardon: Pardon) {
        self.records.fill(Slim::default());
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

    pub(super) fn raise(&mut self, limit: &Limit, place: usize, clear: Moment) {
        if let Some(record) = self.records.get_mut(place) {
            limit.raise(record, clear);
            self.clear = self.clear.max(limit.clear_at(record));
        }
    }

    /// When there is room for one more, if not now.
    pub(super) fn next(&self, limits: &[Limit], now: Moment) -> Option<Moment> {
        let waits =
            limits.iter().zip(&self.records).filter_map(|(limit, record)| match limit.room(record, Toll::ONE, now) {
                Room::From(moment) => Some(moment),
                Room::Now | Room::OnRelease | Room::Never => None,
            });
        waits.max()
    }
}

impl Account {
    /// Charges what is new in a tally.
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
            let seen = Seen { gate: tally.gate, serial: tally.serial, told: tally.total, last: timing.last };
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
        // What is new beyond the last request came in between, nobody knows when: as early as can be, so that nobody is
        // blocked for what was long paid back. What was not paid back is in the gate's own books, which are taken over, too.
        if charged > 1 {
            self.charge(limits, Toll { count: charged - 1, cpu: Span::ZERO }, since.min(timing.last));
        }
        self.charge(limits, Toll { count: charged.min(1), cpu }, timing.last);
        Outcome::Charged(charged)
    }

    /// What the gate's own books say is owed, which is never more than the truth. This is what brings debt back after a restart.
    /// A gate that claims that somebody is to be delayed beyond `latest` is not believed.
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
            // A pardon from before this master's time.
            self.pardon = Some(Pardon { era: tally.era, at: Moment::ZERO, forget: latest });
        }
        if let ([limit], Some(clear)) = (limits, clear)
            && clear > now
        {
            let believed = limit.clear_if_next(latest).unwrap_or_default();
            self.raise(limit, 0, clear.min(believed));
        }
    }
}

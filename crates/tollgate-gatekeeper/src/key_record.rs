//! The record of a key in its row of the table, or the record that the key would get.
//!
//! A read assigns no slot: a key without a record sees the state that it would start from, and gets a slot
//! only when it is charged. Refusals therefore evict no other key. [`crate::row`] describes hot and cold slots and
//! the overflow record. Records are read without a lock; [`KeyRecord::is_current`] then checks that no other thread has
//! changed the row in the meantime.

use core::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_core::record::Record;
use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::lock::{Locked, Version};
use crate::row::{OVERFLOW, Row};
use crate::table::TablePressure;

/// The record of a key, or the record that the key would get.
pub(crate) struct KeyRecord<'t> {
    row: Row<'t>,
    rule: &'t Rule,
    pressure: &'t TablePressure,
    /// The part of the key's hash that identifies it within the row.
    fingerprint: u32,
    /// The time of the decision.
    now: Moment,
    /// The version of the row when the key was searched for.
    version: Version,
    pub(crate) location: Location,
}

/// The location of a key's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The key has this slot.
    Slot(usize),
    /// The key shares the overflow record with other keys.
    Overflow,
    /// The key has no record. It would take this slot and start from the overflow record.
    FromOverflow(usize),
    /// The key has no record. It would take this slot and start from zero.
    Fresh(usize),
}

impl<'t> KeyRecord<'t> {
    /// Finds the key with `fingerprint`.
    #[inline]
    pub(crate) fn new(
        row: Row<'t>,
        rule: &'t Rule,
        pressure: &'t TablePressure,
        fingerprint: u32,
        now: Moment,
    ) -> Self {
        let version = row.lock().version();
        let location = match row.find_hot(fingerprint) {
            Some(index) => Location::Slot(index),
            None => locate_cold(&row, rule, fingerprint, now),
        };
        Self { row, rule, pressure, fingerprint, now, version, location }
    }

    /// Whether the key has a slot.
    pub(crate) fn has_slot(&self) -> bool {
        matches!(self.location, Location::Slot(_))
    }

    /// Locks the row.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'t> {
        self.row.lock().take()
    }

    /// Whether the row is unchanged since the key was searched for, so that all reads since then are consistent.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.row.lock().is_still(self.version)
    }

    /// Searches for the key again if the row has changed since the last search. Returns whether it has. The caller
    /// holds the lock.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        let changed = !self.row.lock().was_still(self.version);
        if changed {
            *self = Self::new(self.row, self.rule, self.pressure, self.fingerprint, self.now);
        }
        changed
    }

    /// The record to read; `None` if the key would start from zero.
    #[inline]
    fn source(&self) -> Option<usize> {
        match self.location {
            Location::Slot(index) => Some(index),
            Location::Overflow | Location::FromOverflow(_) => Some(OVERFLOW),
            Location::Fresh(_) => None,
        }
    }

    /// The record to write. A new key takes its slot now.
    #[inline]
    fn target(&mut self) -> usize {
        debug_assert!(self.row.lock().is_taken());
        match self.location {
            Location::Slot(index) => index,
            Location::Overflow => OVERFLOW,
            Location::FromOverflow(index) => self.take(index, true),
            Location::Fresh(index) => self.take(index, false),
        }
    }

    /// Takes the slot at `index`; its previous record is merged into the overflow record.
    #[cold]
    fn take(&mut self, index: usize, from_overflow: bool) -> usize {
        let row = self.row;
        if from_overflow {
            self.pressure.from_overflow.fetch_add(1, Relaxed);
        }
        if !row.is_empty(index) && self.rule.clear_at(&row.slot(index)) > self.now {
            self.pressure.evicted.fetch_add(1, Relaxed);
        }
        row.assign(index, self.fingerprint, from_overflow, self.rule);
        self.location = Location::Slot(index);
        index
    }
}

/// The location of a key that has no hot slot. A key without a record would take the slot that is clear soonest: a hot
/// one, or a cold one if all hot ones have debt.
#[cold]
fn locate_cold(row: &Row<'_>, rule: &Rule, fingerprint: u32, now: Moment) -> Location {
    let has_cold_debt = row.has_cold_debt(now);
    // A cold record is looked up only if one may have debt, because cold slots are slow to read.
    let known = if has_cold_debt { row.find_cold(fingerprint) } else { None };
    if let Some(index) = known
        && rule.clear_at(&row.slot(index)).max(row.evicted_until()) > now
    {
        return Location::Slot(index);
    }
    let clear_at_of = |index: usize| if row.is_empty(index) { None } else { Some(rule.clear_at(&row.slot(index))) };
    let best = |slots: Range<usize>| slots.map(|index| (clear_at_of(index), index)).min();
    let (mut best_clear_at, mut index) = best(row.hot_slots()).expect("a row has slots");
    if best_clear_at > Some(now) {
        // A key that has a cold slot without debt takes that slot again, because a key must never have two cold slots.
        if let Some(index) = row.find_cold(fingerprint) {
            return Location::Slot(index);
        }
        (best_clear_at, index) = best(row.cold_slots()).unwrap_or((best_clear_at, index));
    }
    // If no cold record has debt, the overflow record of a compact row has none either, and reading it would be slow.
    let overflow_matters = has_cold_debt || row.cold_slots().is_empty();
    let overflow_clear_at = if overflow_matters { rule.clear_at(&row.slot(OVERFLOW)) } else { Moment::ZERO };
    // A record that counts requests in flight does not become clear with time. It must not move, because these
    // requests decrement it when they end.
    if overflow_clear_at == Moment::MAX || best_clear_at == Some(Moment::MAX) {
        Location::Overflow
    } else if overflow_clear_at.max(row.evicted_until()) > now && known.is_none() {
        Location::FromOverflow(index)
    } else {
        Location::Fresh(index)
    }
}

impl Record for KeyRecord<'_> {
    #[inline]
    fn aux(&self) -> u32 {
        self.source().map_or(0, |index| self.row.slot(index).aux())
    }

    #[inline]
    fn set_aux(&mut self, aux: u32) {
        let index = self.target();
        self.row.slot(index).set_aux(aux);
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        let stored = self.source().map_or(0, |record| self.row.slot(record).word(index));
        match self.location {
            Location::Fresh(_) => stored,
            Location::Slot(slot) if self.row.hot_slots().contains(&slot) => stored,
            // The key may have had a hot slot after this record was written: see `HotSlots`.
            _ => stored.max(self.row.evicted_until().as_nanos()),
        }
    }

    #[inline]
    fn set_word(&mut self, index: usize, value: u64) {
        let record = self.target();
        self.row.slot(record).set_word(index, value);
        self.row.note_change(record, Moment::from_nanos(value));
    }
}

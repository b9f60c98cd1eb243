//! Where a key sits in its line, or would sit.
//!
//! Looking takes no place: a key that was never seen, or that comes back, is shown what it would start from, and takes a place only when
//! something is charged to it. So refusals evict nobody, and who only tries cannot push others out.

use core::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_core::record::Record;
use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::line::{FLOOR, Line};
use crate::lock::{Locked, Version};
use crate::table::Strain;

/// A key's record, where it is, or what it would be.
pub(crate) struct Seat<'t> {
    line: Line<'t>,
    rule: &'t Rule,
    strain: &'t Strain,
    fingerprint: u32,
    now: Moment,
    version: Version,
    place: Place,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this slot.
    Slot(usize),
    /// Together with others, in the floor.
    Floor,
    /// Nowhere yet. It would take this slot and start from the floor.
    FromFloor(usize),
    /// Nowhere yet. It would take this slot and start afresh.
    Fresh(usize),
}

impl<'t> Seat<'t> {
    /// Finds the key with `fingerprint`.
    #[inline]
    pub(crate) fn new(line: Line<'t>, rule: &'t Rule, strain: &'t Strain, fingerprint: u32, now: Moment) -> Self {
        let version = line.lock().version();
        let place = match line.find_in_front(fingerprint) {
            Some(index) => Place::Slot(index),
            None => place_elsewhere(&line, rule, fingerprint, now),
        };
        Self { line, rule, strain, fingerprint, now, version, place }
    }

    /// Where the key is.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Whether the key has a slot of its own.
    pub(crate) fn has_slot(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// Sits down with others in the floor, where the key was put before.
    pub(crate) fn sit_on_floor(&mut self) {
        self.place = Place::Floor;
    }

    /// Takes the right to change the line.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'t> {
        self.line.lock().take()
    }

    /// Whether what was read here is what the line held when the key was looked for.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.line.lock().is_still(self.version)
    }

    /// Under the lock: looks for the key again if somebody changed the line before it was taken, and says whether that was so.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        let changed = !self.line.lock().was_still(self.version);
        if changed {
            *self = Self::new(self.line, self.rule, self.strain, self.fingerprint, self.now);
        }
        changed
    }

    /// The record to read: none while the key would start afresh.
    #[inline]
    fn source(&self) -> Option<usize> {
        match self.place {
            Place::Slot(index) => Some(index),
            Place::Floor | Place::FromFloor(_) => Some(FLOOR),
            Place::Fresh(_) => None,
        }
    }

    /// The record to write, for which a newcomer takes its place now.
    #[inline]
    fn target(&mut self) -> usize {
        debug_assert!(self.line.lock().is_taken());
        match self.place {
            Place::Slot(index) => index,
            Place::Floor => FLOOR,
            Place::FromFloor(index) => self.take(index, true),
            Place::Fresh(index) => self.take(index, false),
        }
    }

    /// Takes the slot at `index`; whoever had it goes into the floor.
    #[cold]
    fn take(&mut self, index: usize, from_floor: bool) -> usize {
        let line = self.line;
        if from_floor {
            self.strain.from_floor.fetch_add(1, Relaxed);
        }
        if !line.is_empty(index) && self.rule.clear_at(&line.slot(index)) > self.now {
            self.strain.evicted.fetch_add(1, Relaxed);
        }
        line.assign(index, self.fingerprint, from_floor, self.rule);
        self.place = Place::Slot(index);
        index
    }
}

/// Where a key is that is not in the front of its line, or which place it would take.
#[cold]
fn place_elsewhere(line: &Line<'_>, rule: &Rule, fingerprint: u32, now: Moment) -> Place {
    let back_matters = line.back_matters(now);
    let known = if back_matters { line.find_in_back(fingerprint) } else { None };
    if let Some(index) = known
        && rule.clear_at(&line.slot(index)).max(line.hindsight()) > now
    {
        return Place::Slot(index);
    }
    let standing = |index: usize| if line.is_empty(index) { None } else { Some(rule.clear_at(&line.slot(index))) };
    let best = |slots: Range<usize>| slots.map(|index| (standing(index), index)).min();
    let (mut best_standing, mut index) = best(line.front_slots()).expect("a line has slots");
    if best_standing > Some(now) {
        // Who was there before takes the same place again: a key has one record in the back, be it clear.
        if let Some(index) = line.find_in_back(fingerprint) {
            return Place::Slot(index);
        }
        (best_standing, index) = best(line.back_slots()).unwrap_or((best_standing, index));
    }
    // Where the back does not matter the floor is clear, and too far away to look.
    let floor_matters = back_matters || line.back_slots().is_empty();
    let floor_clear_at = if floor_matters { rule.clear_at(&line.slot(FLOOR)) } else { Moment::ZERO };
    // What cannot become clear by itself is counted by those at work: it must stay where they will look for it.
    if floor_clear_at == Moment::MAX || best_standing == Some(Moment::MAX) {
        Place::Floor
    } else if floor_clear_at.max(line.hindsight()) > now && known.is_none() {
        Place::FromFloor(index)
    } else {
        Place::Fresh(index)
    }
}

impl Record for Seat<'_> {
    #[inline]
    fn aux(&self) -> u32 {
        self.source().map_or(0, |index| self.line.slot(index).aux())
    }

    #[inline]
    fn set_aux(&mut self, aux: u32) {
        let index = self.target();
        self.line.slot(index).set_aux(aux);
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        let stored = self.source().map_or(0, |record| self.line.slot(record).word(index));
        match self.place {
            Place::Fresh(_) => stored,
            Place::Slot(slot) if self.line.front_slots().contains(&slot) => stored,
            // The key may have been in the front since this was written.
            _ => stored.max(self.line.hindsight().as_nanos()),
        }
    }

    #[inline]
    fn set_word(&mut self, index: usize, value: u64) {
        let record = self.target();
        self.line.slot(record).set_word(index, value);
        self.line.note_change(record, Moment::from_nanos(value));
    }
}

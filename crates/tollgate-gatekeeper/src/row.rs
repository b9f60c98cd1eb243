//! One row of the table: some slots, each with the record of one key, an overflow record, and a lock. The overflow
//! record has the debt of keys that lost their slots, from which new keys start.
//!
//! ```text
//! compact  hot slots            cold: 0 .. 2                3 .. 7             elsewhere
//!          (see HotSlots)       fingerprints, in halves    the slots' states  the overflow record
//! full     0                   1 .. 7                    8 ..
//!          lock | overflow aux fingerprint | aux, each   states: overflow, then the slots'
//! ```
//! The numbers are indices of words. A fingerprint is a part of the key's hash, and aux are 32 more bits of a record.
//!
//! The time of a decision is dominated by memory access, so the number of 64-byte cache lines that it accesses
//! matters. If a record has one word, as for most limits, a row is compact: its [`HotSlots`] are usually all
//! that is read, and several groups of cold slots share them. A key belongs to one of these groups. The
//! overflow record is read only for new keys in cold slots, and is stored elsewhere. Larger records use full
//! rows of two or more cache lines, whose first one has everything that is needed to find a key.

use core::ops::Range;

use tollgate_core::record::Record;
use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::hot_slots::{self, HotSlots, half, set_half};
use crate::lock::Lock;
use crate::sync::{AtomicU64, Ordering};

/// The index of the overflow record. Slots have the indices from 1 on, hot ones first.
pub(crate) const OVERFLOW: usize = 0;
// The model checker tries all orders of accesses with at most two preemptions, so it uses few slots.
/// The number of cold slots per group of a compact row.
const COLD_SLOTS: usize = if cfg!(tollgate_model) { 1 } else { 5 };
/// The number of slots of a full row.
const FULL_SLOTS: usize = if cfg!(tollgate_model) { 2 } else { 7 };
/// The number of words with the fingerprints of a group of cold slots.
const COLD_HEADS: usize = COLD_SLOTS.div_ceil(2);
/// The number of words with the lock and the fingerprints of a full row.
const FULL_HEADS: usize = 1 + FULL_SLOTS;
/// The number of words of a group of cold slots: eight, which are 64 bytes.
pub(crate) const COLD_WORDS: usize = COLD_HEADS + COLD_SLOTS;
/// The number of words of the overflow record of a group of cold slots.
pub(crate) const OVERFLOW_WORDS: usize = 1;

/// The layout of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLayout {
    /// For records of one word without aux bits.
    Compact,
    /// For records of this many words, with aux bits.
    Full {
        /// The number of words.
        words: usize,
    },
}

impl RowLayout {
    /// The layout for records of `rule`.
    pub(crate) fn of(rule: &Rule) -> Self {
        match rule.words() {
            1 if !rule.limit.uses_aux() => Self::Compact,
            words => Self::Full { words },
        }
    }

    /// The number of words of a row without its cold slots; `None` on overflow.
    pub(crate) fn hot_words(self) -> Option<usize> {
        match self {
            Self::Compact => Some(hot_slots::WORDS),
            Self::Full { words } => words.checked_mul(1 + FULL_SLOTS)?.checked_add(FULL_HEADS),
        }
    }

    /// The number of words per group of cold slots, with its overflow record. A full row has neither.
    pub(crate) const fn cold_words(self) -> usize {
        match self {
            Self::Compact => COLD_WORDS + OVERFLOW_WORDS,
            Self::Full { .. } => 0,
        }
    }

    /// The number of hot slots per row, and of cold slots per group.
    pub(crate) const fn slots(self) -> (usize, usize) {
        match self {
            Self::Compact => (hot_slots::SLOTS, COLD_SLOTS),
            Self::Full { .. } => (FULL_SLOTS, 0),
        }
    }
}

/// The parts of a row that concern one key, in the memory of the table.
#[derive(Clone, Copy)]
pub(crate) enum Row<'t> {
    /// For records of one word.
    Compact {
        /// The slots that are read first.
        hot: HotSlots<'t>,
        /// The cold slots of the key's group.
        cold: &'t [AtomicU64],
        /// The overflow record of the group.
        overflow: &'t [AtomicU64],
    },
    /// For larger records.
    Full {
        /// All words of the row.
        words: &'t [AtomicU64],
        /// The number of words per record.
        record_words: usize,
    },
}

/// One record of a row. It may be changed only while the row is locked.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'t> {
    /// The word whose high half is the aux bits; `None` in a compact row, where they are always zero.
    head: Option<&'t AtomicU64>,
    state: &'t [AtomicU64],
}

impl<'t> Row<'t> {
    /// The lock of the row, which all groups of cold slots share.
    #[inline]
    pub(crate) fn lock(&self) -> Lock<'t> {
        match self {
            Self::Compact { hot, .. } => hot.lock(),
            Self::Full { words, .. } => Lock(&words[0]),
        }
    }

    /// The slots that are searched first.
    pub(crate) fn hot_slots(&self) -> Range<usize> {
        match self {
            Self::Compact { .. } => 1..1 + hot_slots::SLOTS,
            Self::Full { .. } => 1..1 + FULL_SLOTS,
        }
    }

    /// The cold slots; empty for a full row.
    pub(crate) fn cold_slots(&self) -> Range<usize> {
        match self {
            Self::Compact { .. } => 1 + hot_slots::SLOTS..1 + hot_slots::SLOTS + COLD_SLOTS,
            Self::Full { .. } => 0..0,
        }
    }

    /// The hot slot with `fingerprint`.
    #[inline]
    pub(crate) fn find_hot(&self, fingerprint: u32) -> Option<usize> {
        match self {
            Self::Compact { hot, .. } => hot.find(fingerprint),
            Self::Full { words, .. } => {
                let mut found = OVERFLOW;
                for (slot, head) in words[..FULL_HEADS].iter().enumerate().skip(1) {
                    found = if head.load(Ordering::Relaxed) as u32 == fingerprint { slot } else { found };
                }
                (found != OVERFLOW).then_some(found)
            }
        }
    }

    /// The cold slot with `fingerprint`.
    pub(crate) fn find_cold(&self, fingerprint: u32) -> Option<usize> {
        self.cold_slots().find(|&slot| self.fingerprint(slot) == fingerprint)
    }

    /// Whether a cold record has debt at `now`.
    pub(crate) fn has_cold_debt(&self, now: Moment) -> bool {
        match self {
            Self::Compact { hot, .. } => hot.has_cold_debt(now),
            Self::Full { .. } => false,
        }
    }

    /// The earliest time at which a key without a hot slot is clear: see [`HotSlots`].
    pub(crate) fn evicted_until(&self) -> Moment {
        match self {
            Self::Compact { hot, .. } => hot.evicted_until(),
            Self::Full { .. } => Moment::ZERO,
        }
    }

    /// Whether the slot is empty.
    pub(crate) fn is_empty(&self, slot: usize) -> bool {
        self.fingerprint(slot) == 0
    }

    fn fingerprint(&self, slot: usize) -> u32 {
        debug_assert!(slot != OVERFLOW);
        match self {
            Self::Compact { hot, .. } if slot <= hot_slots::SLOTS => half(hot.0, slot),
            Self::Compact { cold, .. } => half(cold, slot - hot_slots::SLOTS - 1),
            Self::Full { words, .. } => words[slot].load(Ordering::Relaxed) as u32,
        }
    }

    /// The record at `index`.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot<'t> {
        match *self {
            Self::Compact { overflow, .. } if index == OVERFLOW => Slot { head: None, state: overflow },
            Self::Compact { hot, .. } if index <= hot_slots::SLOTS => {
                Slot { head: None, state: core::slice::from_ref(hot.state(index)) }
            }
            Self::Compact { cold, .. } => {
                let state = COLD_HEADS + index - hot_slots::SLOTS - 1;
                Slot { head: None, state: &cold[state..=state] }
            }
            Self::Full { words, record_words } => {
                let start = FULL_HEADS + index * record_words;
                Slot { head: Some(&words[index]), state: &words[start..start + record_words] }
            }
        }
    }

    /// Must be called after a change of the record at `index`. In a compact row, the record has debt until `until`.
    pub(crate) fn note_change(&self, index: usize, until: Moment) {
        match self {
            Self::Compact { hot, .. } if index == OVERFLOW || index > hot_slots::SLOTS => hot.note_cold_debt(until),
            _ => {}
        }
    }

    /// Assigns `slot` to the key with `fingerprint`, which starts from the overflow record or from zero. The
    /// previous record is merged into the overflow record.
    pub(crate) fn assign(&self, slot: usize, fingerprint: u32, from_overflow: bool, rule: &Rule) {
        debug_assert!(self.lock().is_taken() && slot != OVERFLOW);
        match self {
            Self::Compact { hot, .. } if slot <= hot_slots::SLOTS => {
                let overflow = || Moment::from_nanos(self.slot(OVERFLOW).word(0)).max(hot.evicted_until());
                hot.assign(slot, fingerprint, if from_overflow { overflow() } else { Moment::ZERO });
            }
            Self::Compact { cold, .. } => {
                self.displace(slot, from_overflow, rule);
                set_half(cold, slot - hot_slots::SLOTS - 1, fingerprint);
            }
            Self::Full { words, .. } => {
                self.displace(slot, from_overflow, rule);
                set_half(words, 2 * slot, fingerprint);
            }
        }
    }

    /// Replaces the record at `index`: the new key gets the overflow record or zero, and the overflow record absorbs
    /// the evicted one. This includes records without debt: a thread whose clock is slightly behind then still finds
    /// the rest of their debt.
    fn displace(&self, index: usize, from_overflow: bool, rule: &Rule) {
        if from_overflow || !self.is_empty(index) {
            self.swap(index, OVERFLOW);
            rule.absorb(&mut self.slot(OVERFLOW), &self.slot(index));
        }
        if !from_overflow {
            self.slot(index).clear(rule.words());
        }
    }

    /// Swaps the records at `a` and `b`, but not their keys.
    fn swap(&self, a: usize, b: usize) {
        let (mut a, mut b) = (self.slot(a), self.slot(b));
        let aux = (a.aux(), b.aux());
        a.set_aux(aux.1);
        b.set_aux(aux.0);
        for word in 0..a.state.len() {
            let values = (a.word(word), b.word(word));
            a.set_word(word, values.1);
            b.set_word(word, values.0);
        }
    }
}

impl Record for Slot<'_> {
    #[inline]
    fn aux(&self) -> u32 {
        self.head.map_or(0, |head| (head.load(Ordering::Relaxed) >> 32) as u32)
    }

    #[inline]
    fn set_aux(&mut self, aux: u32) {
        debug_assert!(self.head.is_some() || aux == 0, "a rule with compact records uses aux bits");
        if let Some(head) = self.head {
            let low = head.load(Ordering::Relaxed) & u64::from(u32::MAX);
            head.store(low | u64::from(aux) << 32, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.state[index].load(Ordering::Relaxed)
    }

    #[inline]
    fn set_word(&mut self, index: usize, value: u64) {
        self.state[index].store(value, Ordering::Relaxed);
    }
}

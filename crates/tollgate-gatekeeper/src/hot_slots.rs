//! The hot slots of a compact row ([`crate::row`]), for keys that have debt now, which means that not all of their
//! charges are paid back yet.
//!
//! ```text
//! halves of words     0     1 .. 4               5             words  3          4 .. 7
//!                     lock  fingerprints         cold debt            evicted    the slots'
//!                           of the slots         until                until      states
//! ```
//! A table has slots for all keys of its busiest day, far more than the processor's cache can hold. A key
//! without debt needs no slot, and most keys have none: debt usually lasts for seconds. Every row therefore has 64
//! bytes of hot slots, and the hot slots of all rows fit the cache. Other records are in cold slots, in
//! memory that is slow to read. The hot slots include the time until which any cold record has debt, so cold
//! slots are read only before that time.
//!
//! Only records without debt are evicted from hot slots. A thread whose clock is slightly behind would still
//! find debt in them, so the latest of these times is kept as *evicted until*, and every key without a hot
//! slot starts from it.

use tollgate_core::time::Moment;

use crate::lock::Lock;
use crate::sync::{AtomicU64, Ordering};

// The model checker tries all orders of accesses with at most two preemptions, so it uses few slots.
pub(crate) const SLOTS: usize = if cfg!(tollgate_model) { 1 } else { 4 };
/// The number of words with the lock, the fingerprints and the time of cold debt, each in half a word.
const HEADS: usize = (1 + SLOTS + 1).div_ceil(2);
/// The index of the word with the *evicted until* time.
const EVICTED_UNTIL: usize = HEADS;
/// The index of the state of the first slot.
const STATES: usize = HEADS + 1;
/// The number of words of the hot slots: eight, which are 64 bytes.
pub(crate) const WORDS: usize = STATES + SLOTS;
/// The half-word with the time until which cold slots have debt.
const COLD_UNTIL: usize = 1 + SLOTS;
/// That time is in units of 2^22 ns (4 ms), which 32 bits can count for more than half a year. Later, cold
/// slots that were ever used are always read, and decisions take slightly longer.
const STEP_BITS: u32 = 22;

/// The hot slots of a row, in place. Slots are numbered from 1.
#[derive(Clone, Copy)]
pub(crate) struct HotSlots<'t>(pub(crate) &'t [AtomicU64; WORDS]);

impl<'t> HotSlots<'t> {
    /// The row's lock.
    #[inline(always)]
    pub(crate) fn lock(self) -> Lock<'t> {
        Lock(&self.0[0])
    }

    /// The slot with `fingerprint`. All are compared without branches, because the match is unpredictable and
    /// a misprediction costs more than all comparisons.
    #[inline(always)]
    pub(crate) fn find(self, fingerprint: u32) -> Option<usize> {
        let mut found = 0;
        for slot in 1..=SLOTS {
            found = if half(self.0, slot) == fingerprint { slot } else { found };
        }
        (found != 0).then_some(found)
    }

    /// The slot that is clear soonest, and the time from which it is. An empty slot has always been clear.
    #[inline(always)]
    pub(crate) fn best(self) -> (usize, Moment) {
        let mut best = (1, self.state(1).load(Ordering::Relaxed));
        for slot in 2..=SLOTS {
            let state = self.state(slot).load(Ordering::Relaxed);
            best = if state < best.1 { (slot, state) } else { best };
        }
        (best.0, Moment::from_nanos(best.1))
    }

    /// The record of `slot`: the time from which it is clear.
    #[inline(always)]
    pub(crate) fn state(self, slot: usize) -> &'t AtomicU64 {
        &self.0[STATES + slot - 1]
    }

    /// The latest time at which an evicted record was clear.
    #[inline(always)]
    pub(crate) fn evicted_until(self) -> Moment {
        Moment::from_nanos(self.0[EVICTED_UNTIL].load(Ordering::Relaxed))
    }

    /// Assigns `slot`, whose record is clear, to the key with `fingerprint`, which starts from `state`.
    #[inline(always)]
    pub(crate) fn assign(self, slot: usize, fingerprint: u32, state: Moment) {
        debug_assert!(self.lock().is_taken());
        let evicted_until = self.evicted_until().as_nanos().max(self.state(slot).load(Ordering::Relaxed));
        self.0[EVICTED_UNTIL].store(evicted_until, Ordering::Relaxed);
        set_half(self.0, slot, fingerprint);
        self.state(slot).store(state.as_nanos(), Ordering::Relaxed);
    }

    /// Whether a cold record has debt at `now`.
    #[inline(always)]
    pub(crate) fn has_cold_debt(self, now: Moment) -> bool {
        u64::from(half(self.0, COLD_UNTIL)) > (now.as_nanos() >> STEP_BITS).min(u64::from(u32::MAX) - 1)
    }

    /// Records that a cold record has debt until `until`.
    pub(crate) fn note_cold_debt(self, until: Moment) {
        debug_assert!(self.lock().is_taken());
        let steps = until.as_nanos().div_ceil(1 << STEP_BITS);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if steps > half(self.0, COLD_UNTIL) {
            set_half(self.0, COLD_UNTIL, steps);
        }
    }
}

/// The half-word at `index`. That of a slot is the fingerprint of its key, or zero if it is empty.
#[inline(always)]
pub(crate) fn half(words: &[AtomicU64], index: usize) -> u32 {
    (words[index / 2].load(Ordering::Relaxed) >> (index % 2 * 32)) as u32
}

/// Replaces the half-word at `index`.
#[inline(always)]
pub(crate) fn set_half(words: &[AtomicU64], index: usize, value: u32) {
    let (word, shift) = (&words[index / 2], index % 2 * 32);
    let other = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
    word.store(other | u64::from(value) << shift, Ordering::Relaxed);
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> [AtomicU64; WORDS] {
        core::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn hot_slots_are_one_cache_line() {
        assert_eq!(size_of::<[AtomicU64; WORDS]>(), 64);
    }

    #[test]
    fn the_slot_that_is_clear_soonest_is_evicted() {
        let words = words();
        let front = HotSlots(&words);
        let lock = front.lock().take();
        for (slot, at) in [(1, 40), (2, 20), (3, 30), (4, 50)] {
            assert_eq!(front.best().1, Moment::ZERO);
            front.assign(slot, slot as u32 * 7, Moment::from_millis(at));
        }
        front.note_cold_debt(Moment::from_millis(1));
        assert_eq!(front.best(), (2, Moment::from_millis(20)));
        front.assign(2, 99, Moment::from_millis(60));
        assert_eq!(front.evicted_until(), Moment::from_millis(20));
        assert_eq!(
            [7, 99, 21, 28, 14].map(|fingerprint| front.find(fingerprint)),
            [Some(1), Some(2), Some(3), Some(4), None]
        );
        drop(lock);
        assert!(front.has_cold_debt(Moment::ZERO) && !front.lock().is_taken());
    }

    proptest! {
        #[test]
        fn cold_debt_lasts_as_long_as_a_cold_record_has_debt(untils in prop::collection::vec(any::<u64>(), 0..4), now in any::<u64>(), shift in 0..64_u32) {
            let words = words();
            let front = HotSlots(&words);
            let _lock = front.lock().take();
            for &until in &untils {
                front.note_cold_debt(Moment::from_nanos(until >> shift));
            }
            let last = untils.iter().max().map_or(0, |&last| last >> shift);
            let now = now >> shift;
            prop_assert!(last <= now || front.has_cold_debt(Moment::from_nanos(now)));
            // It ends soon after that, within the first half year.
            let half_a_year = u64::from(u32::MAX) << STEP_BITS;
            prop_assert!(last > half_a_year || !front.has_cold_debt(Moment::from_nanos(last.saturating_add(1 << STEP_BITS))));
        }
    }
}

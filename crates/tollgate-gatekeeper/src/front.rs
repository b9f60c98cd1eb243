//! The front of a lean line: where keys are that owe something now.
//!
//! ```text
//! halves of words     0     1 .. 4               5             words  3          4 .. 7
//!                     lock  fingerprints         back matters         the        the slots'
//!                           of the slots         until                hindsight  states
//! ```
//! A table has places for all keys of its busiest day, and is far larger than what a processor keeps at hand. But a key whose record is clear
//! needs no place at all, and of the others there are only ever as many as came within the time that a debt lasts. So every line has
//! a front of 64 bytes, and all fronts together stay in the processor's cache; behind it, in a memory that is slow to reach, lies what did
//! not fit. Whether that matters is written on the front: not while all that lies there is clear.
//!
//! The front gives up only records that are clear. A thread whose clock is a moment behind would still find a debt in them, so it finds the
//! latest of them in the *hindsight*, from which everybody starts that has no place in the front.

use tollgate_core::time::Moment;

use crate::lock::Lock;
use crate::sync::{AtomicU64, Ordering};

// A model checker has to try every order of looking at the slots, so it gets few.
pub(crate) const SLOTS: usize = if cfg!(tollgate_model) { 1 } else { 4 };
const HEADS: usize = (1 + SLOTS + 1).div_ceil(2);
const HINDSIGHT: usize = HEADS;
const STATES: usize = HEADS + 1;
/// How many words a front has: 64 bytes.
pub(crate) const WORDS: usize = STATES + SLOTS;
/// Which half of the words says until when the back matters.
const BACK_UNTIL: usize = 1 + SLOTS;
/// That is kept in steps of 4 ms, which 32 bits can count for more than half a year. After that the back always matters where it was ever
/// used, and decisions take a little longer.
const STEP_BITS: u32 = 22;

/// The front of a line, where it lies. Its slots are counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct Front<'t> {
    words: &'t [AtomicU64; WORDS],
}

impl<'t> Front<'t> {
    /// The front that these words are.
    #[inline(always)]
    pub(crate) fn new(words: &'t [AtomicU64; WORDS]) -> Self {
        Self { words }
    }

    /// The line's lock.
    #[inline(always)]
    pub(crate) fn lock(self) -> Lock<'t> {
        Lock::new(&self.words[0])
    }

    /// The slot that carries `fingerprint`. All are compared, without a branch for each: which one it is cannot be predicted, and a
    /// wrong guess costs more than all the comparisons.
    #[inline(always)]
    pub(crate) fn find(self, fingerprint: u32) -> Option<usize> {
        let mut found = 0;
        for slot in 1..=SLOTS {
            found = if self.half(slot) == fingerprint { slot } else { found };
        }
        (found != 0).then_some(found)
    }

    /// The slot in the best standing, and from when on that is clear. An empty one has always been.
    #[inline(always)]
    pub(crate) fn best(self) -> (usize, Moment) {
        let mut best = (1, self.state(1).load(Ordering::Relaxed));
        for slot in 2..=SLOTS {
            let state = self.state(slot).load(Ordering::Relaxed);
            best = if state < best.1 { (slot, state) } else { best };
        }
        (best.0, Moment::from_nanos(best.1))
    }

    /// The record of `slot`: the moment from which on it is clear.
    #[inline(always)]
    pub(crate) fn state(self, slot: usize) -> &'t AtomicU64 {
        &self.words[STATES + slot - 1]
    }

    /// The latest moment at which a record was clear that had to leave the front.
    #[inline(always)]
    pub(crate) fn hindsight(self) -> Moment {
        Moment::from_nanos(self.words[HINDSIGHT].load(Ordering::Relaxed))
    }

    /// Gives `slot`, whose record is clear, to the key with `fingerprint`, which starts from `state`.
    #[inline(always)]
    pub(crate) fn assign(self, slot: usize, fingerprint: u32, state: Moment) {
        debug_assert!(self.lock().is_taken());
        let hindsight = self.hindsight().as_nanos().max(self.state(slot).load(Ordering::Relaxed));
        self.words[HINDSIGHT].store(hindsight, Ordering::Relaxed);
        self.set_half(slot, fingerprint);
        self.state(slot).store(state.as_nanos(), Ordering::Relaxed);
    }

    /// The fingerprint of the key that has `slot`; zero when nobody has.
    pub(crate) fn fingerprint(self, slot: usize) -> u32 {
        self.half(slot)
    }

    /// Whether something lies in the back at `now` that is not clear.
    #[inline(always)]
    pub(crate) fn back_matters(self, now: Moment) -> bool {
        u64::from(self.half(BACK_UNTIL)) > (now.as_nanos() >> STEP_BITS).min(u64::from(u32::MAX) - 1)
    }

    /// The back has a record now that is clear from `until` on.
    pub(crate) fn expect_back(self, until: Moment) {
        debug_assert!(self.lock().is_taken());
        let steps = until.as_nanos().div_ceil(1 << STEP_BITS);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if steps > self.half(BACK_UNTIL) {
            self.set_half(BACK_UNTIL, steps);
        }
    }

    #[inline(always)]
    fn half(self, index: usize) -> u32 {
        (self.words[index / 2].load(Ordering::Relaxed) >> (index % 2 * 32)) as u32
    }

    #[inline(always)]
    fn set_half(self, index: usize, value: u32) {
        let (word, shift) = (&self.words[index / 2], index % 2 * 32);
        let other = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(other | u64::from(value) << shift, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> [AtomicU64; WORDS] {
        core::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn a_front_is_what_the_processor_fetches_at_once() {
        assert_eq!(size_of::<[AtomicU64; WORDS]>(), 64);
    }

    #[test]
    fn the_slot_in_best_standing_is_the_one_to_go_and_the_rest_stays_as_it_is() {
        let words = words();
        let front = Front::new(&words);
        let lock = front.lock().take();
        for (slot, at) in [(1, 40), (2, 20), (3, 30), (4, 50)] {
            assert_eq!(front.best().1, Moment::ZERO);
            front.assign(slot, slot as u32 * 7, Moment::from_millis(at));
        }
        front.expect_back(Moment::from_millis(1));
        assert_eq!(front.best(), (2, Moment::from_millis(20)));
        front.assign(2, 99, Moment::from_millis(60));
        assert_eq!(front.hindsight(), Moment::from_millis(20));
        assert_eq!(
            [7, 99, 21, 28, 14].map(|fingerprint| front.find(fingerprint)),
            [Some(1), Some(2), Some(3), Some(4), None]
        );
        drop(lock);
        assert!(front.back_matters(Moment::ZERO) && !front.lock().is_taken());
    }

    proptest! {
        #[test]
        fn the_back_matters_as_long_as_something_in_it_is_not_clear(untils in prop::collection::vec(any::<u64>(), 0..4), now in any::<u64>(), shift in 0..64_u32) {
            let words = words();
            let front = Front::new(&words);
            let _lock = front.lock().take();
            for &until in &untils {
                front.expect_back(Moment::from_nanos(until >> shift));
            }
            let last = untils.iter().max().map_or(0, |&last| last >> shift);
            let now = now >> shift;
            prop_assert!(last <= now || front.back_matters(Moment::from_nanos(now)));
            // And not for long after that, in the first half year.
            let half_a_year = u64::from(u32::MAX) << STEP_BITS;
            prop_assert!(last > half_a_year || !front.back_matters(Moment::from_nanos(last.saturating_add(1 << STEP_BITS))));
        }
    }
}

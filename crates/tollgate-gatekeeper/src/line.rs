//! One line of the table: some slots, a floor, and a lock.
//!
//! ```text
//! lean     front (see there)    back: 0 .. 2                3 .. 7             elsewhere
//!                               fingerprints, in halves    the slots' states  the floor's state
//! full     0                1 .. 7                    8 ..
//!          lock | floor aux fingerprint | aux, each   states: the floor's, then the slots'
//! ```
//! What a decision waits for is memory, so what counts is how many pieces of 64 bytes it touches, and how near they are. Where a record is
//! one word, as for most limits, a line is lean: a [`Front`] that is nearly always all that is looked at, shared by several backs. A key
//! belongs to one of these, and the floor, which only newcomers to the back look at, lies elsewhere again. Records that need more live in
//! full lines, of two pieces or more; there all that must be looked at to find a key is in the first.

use core::ops::Range;

use tollgate_core::record::Record;
use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::front::{self, Front};
use crate::lock::Lock;
use crate::sync::{AtomicU64, Ordering};

/// The floor is record 0; the slots are the records from 1 on, those of the front first.
pub(crate) const FLOOR: usize = 0;
// A model checker has to try every order of looking at the slots, so it gets few.
const SLOTS_BACK: usize = if cfg!(tollgate_model) { 1 } else { 5 };
const SLOTS_FULL: usize = if cfg!(tollgate_model) { 2 } else { 7 };
const HEADS_BACK: usize = SLOTS_BACK.div_ceil(2);
const HEADS_FULL: usize = 1 + SLOTS_FULL;
/// The back of a lean line: 64 bytes too.
pub(crate) const BACK_WORDS: usize = HEADS_BACK + SLOTS_BACK;
/// The floor of a lean line.
pub(crate) const FLOOR_WORDS: usize = 1;

/// How a line uses its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// For records of one word and nothing else.
    Lean,
    /// For records of so many words, and 32 bits.
    Full {
        /// How many.
        words: usize,
    },
}

impl Shape {
    /// What records of `rule` need.
    pub(crate) fn of(rule: &Rule) -> Self {
        match rule.words() {
            1 if !rule.limit.uses_aux() => Self::Lean,
            words => Self::Full { words },
        }
    }

    /// How many words a line has that every line needs: the front of a lean one, and a full one as a whole. None when that is more
    /// than there can be.
    pub(crate) const fn front_words(self) -> Option<usize> {
        match self {
            Self::Lean => Some(front::WORDS),
            Self::Full { words } => match words.checked_mul(1 + SLOTS_FULL) {
                Some(states) => states.checked_add(HEADS_FULL),
                None => None,
            },
        }
    }

    /// How many words each of the backs has that share a front, the floor not counted.
    pub(crate) const fn back_words(self) -> usize {
        match self {
            Self::Lean => BACK_WORDS,
            Self::Full { .. } => 0,
        }
    }

    /// How many words of a floor lie elsewhere.
    pub(crate) const fn floor_words(self) -> usize {
        match self {
            Self::Lean => FLOOR_WORDS,
            Self::Full { .. } => 0,
        }
    }

    /// How many keys a front has places for, and each back.
    pub(crate) const fn slots(self) -> (usize, usize) {
        match self {
            Self::Lean => (front::SLOTS, SLOTS_BACK),
            Self::Full { .. } => (SLOTS_FULL, 0),
        }
    }
}

/// A line as one key sees it, where it lies.
#[derive(Clone, Copy)]
pub(crate) enum Line<'t> {
    /// One for records of one word.
    Lean {
        /// What is looked at first.
        front: Front<'t>,
        /// What did not fit there.
        back: &'t [AtomicU64],
        /// The state of the floor.
        floor: &'t [AtomicU64],
    },
    /// One for records of so many words, and 32 bits.
    Full {
        /// All of it.
        words: &'t [AtomicU64],
        /// How many words a record has.
        record_words: usize,
    },
}

/// One record of a line, to look at, or to change while the line is locked.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'t> {
    /// The word whose high half is the record's 32 bits; none in a lean line, where they are always zero.
    head: Option<&'t AtomicU64>,
    state: &'t [AtomicU64],
}

impl<'t> Line<'t> {
    /// The lock of the line, which is that of all backs that share the front.
    #[inline]
    pub(crate) fn lock(&self) -> Lock<'t> {
        match self {
            Self::Lean { front, .. } => front.lock(),
            Self::Full { words, .. } => Lock::new(&words[0]),
        }
    }

    /// The slots in which a key is looked for first.
    pub(crate) fn front_slots(&self) -> Range<usize> {
        match self {
            Self::Lean { .. } => 1..1 + front::SLOTS,
            Self::Full { .. } => 1..1 + SLOTS_FULL,
        }
    }

    /// The slots for those who find no room in the front; none in a full line.
    pub(crate) fn back_slots(&self) -> Range<usize> {
        match self {
            Self::Lean { .. } => 1 + front::SLOTS..1 + front::SLOTS + SLOTS_BACK,
            Self::Full { .. } => 0..0,
        }
    }

    /// The slot in the front that carries `fingerprint`.
    #[inline]
    pub(crate) fn find_in_front(&self, fingerprint: u32) -> Option<usize> {
        match self {
            Self::Lean { front, .. } => front.find(fingerprint),
            Self::Full { words, .. } => {
                let mut found = FLOOR;
                for (slot, head) in words[..HEADS_FULL].iter().enumerate().skip(1) {
                    found = if head.load(Ordering::Relaxed) as u32 == fingerprint { slot } else { found };
                }
                (found != FLOOR).then_some(found)
            }
        }
    }

    /// The slot in the back that carries `fingerprint`.
    pub(crate) fn find_in_back(&self, fingerprint: u32) -> Option<usize> {
        self.back_slots().find(|&slot| self.fingerprint(slot) == fingerprint)
    }

    /// Whether something lies in the back at `now` that is not clear.
    pub(crate) fn back_matters(&self, now: Moment) -> bool {
        match self {
            Self::Lean { front, .. } => front.back_matters(now),
            Self::Full { .. } => false,
        }
    }

    /// From when on a key is clear, at the earliest, that is not in the front: see [`Front`].
    pub(crate) fn hindsight(&self) -> Moment {
        match self {
            Self::Lean { front, .. } => front.hindsight(),
            Self::Full { .. } => Moment::ZERO,
        }
    }

    /// Whether no key has this slot.
    pub(crate) fn is_empty(&self, slot: usize) -> bool {
        self.fingerprint(slot) == 0
    }

    fn fingerprint(&self, slot: usize) -> u32 {
        debug_assert!(slot != FLOOR);
        match self {
            Self::Lean { front, .. } if slot <= front::SLOTS => front.fingerprint(slot),
            Self::Lean { back, .. } => {
                let (word, shift) = half(slot - front::SLOTS - 1);
                (back[word].load(Ordering::Relaxed) >> shift) as u32
            }
            Self::Full { words, .. } => words[slot].load(Ordering::Relaxed) as u32,
        }
    }

    /// The record at `index`.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot<'t> {
        match *self {
            Self::Lean { floor, .. } if index == FLOOR => Slot { head: None, state: floor },
            Self::Lean { front, .. } if index <= front::SLOTS => {
                Slot { head: None, state: core::slice::from_ref(front.state(index)) }
            }
            Self::Lean { back, .. } => {
                let state = HEADS_BACK + index - front::SLOTS - 1;
                Slot { head: None, state: &back[state..=state] }
            }
            Self::Full { words, record_words } => {
                let start = HEADS_FULL + index * record_words;
                Slot { head: Some(&words[index]), state: &words[start..start + record_words] }
            }
        }
    }

    /// The record at `index` was changed. In a lean line it is clear from `until` on.
    pub(crate) fn note_change(&self, index: usize, until: Moment) {
        match self {
            Self::Lean { front, .. } if index == FLOOR || index > front::SLOTS => front.expect_back(until),
            _ => {}
        }
    }

    /// Gives `slot` to the key with `fingerprint`, which starts from the floor or afresh. Whoever had it goes into the floor.
    pub(crate) fn assign(&self, slot: usize, fingerprint: u32, from_floor: bool, rule: &Rule) {
        debug_assert!(self.lock().is_taken() && slot != FLOOR);
        match self {
            Self::Lean { front, .. } if slot <= front::SLOTS => {
                let floor = || Moment::from_nanos(self.slot(FLOOR).word(0)).max(front.hindsight());
                front.assign(slot, fingerprint, if from_floor { floor() } else { Moment::ZERO });
            }
            Self::Lean { back, .. } => {
                self.displace(slot, from_floor, rule);
                let (word, shift) = half(slot - front::SLOTS - 1);
                let others = back[word].load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
                back[word].store(others | u64::from(fingerprint) << shift, Ordering::Relaxed);
            }
            Self::Full { words, .. } => {
                self.displace(slot, from_floor, rule);
                let aux = words[slot].load(Ordering::Relaxed) & !u64::from(u32::MAX);
                words[slot].store(aux | u64::from(fingerprint), Ordering::Relaxed);
            }
        }
    }

    /// The newcomer gets what the floor was, or nothing, and the floor what it and the one who leaves are together. Also one who is clear
    /// goes there: a thread whose clock is a moment behind then still finds what is left of the debt.
    fn displace(&self, index: usize, from_floor: bool, rule: &Rule) {
        if from_floor || !self.is_empty(index) {
            self.swap(index, FLOOR);
            rule.absorb(&mut self.slot(FLOOR), &self.slot(index));
        }
        if !from_floor {
            let mut slot = self.slot(index);
            slot.set_aux(0);
            (0..slot.state.len()).for_each(|word| slot.set_word(word, 0));
        }
    }

    /// Lets the records at `a` and `b` change places. Keys do not move.
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

/// The word that has the half at `index`, and by how many bits that is shifted.
const fn half(index: usize) -> (usize, usize) {
    (index / 2, index % 2 * 32)
}

impl Record for Slot<'_> {
    #[inline]
    fn aux(&self) -> u32 {
        self.head.map_or(0, |head| (head.load(Ordering::Relaxed) >> 32) as u32)
    }

    #[inline]
    fn set_aux(&mut self, aux: u32) {
        debug_assert!(self.head.is_some() || aux == 0, "a rule of lean records uses more than its word");
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

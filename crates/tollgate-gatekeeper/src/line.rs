//! One line of the table: some slots, a floor, and a lock.
//!
//! ```text
//! lean     0 .. 2                                        3 .. 7             elsewhere
//!          lock, then the slots' fingerprints, in halves  the slots' states  the floor's state
//! full     0                1 .. 7                    8 ..
//!          lock | floor aux fingerprint | aux, each   states: the floor's, then the slots'
//! ```
//! What a decision waits for is memory, so what counts is how many pieces of 64 bytes it touches. Where a record is one word, as for
//! most limits, a lean line is one such piece, and the floor, which only newcomers look at, lies elsewhere. Records that need more live
//! in full lines, of two pieces or more; there all that must be looked at to find a key is in the first.
//!
//! The low half of word 0 is a sequence lock: odd while somebody changes the line, and larger afterwards. Who only looks compares it
//! before and after and writes nothing, so any number of cores can refuse the same offender without taking the line from each
//! other. Every word is an atomic, so what a reader sees in the middle of a change is wrong, never undefined, and is thrown away.

use tollgate_core::record::Record;
use tollgate_core::rule::Rule;

use crate::sync::{AtomicU64, Ordering, fence, wait_while};

/// The floor is record 0; the slots are the records from 1 on.
pub(crate) const FLOOR: usize = 0;
// A model checker has to try every order of looking at the slots, so it gets few.
const SLOTS_LEAN: usize = if cfg!(tollgate_model) { 2 } else { 5 };
const SLOTS_FULL: usize = if cfg!(tollgate_model) { 2 } else { 7 };
const HEADS_LEAN: usize = (1 + SLOTS_LEAN).div_ceil(2);
const HEADS_FULL: usize = 1 + SLOTS_FULL;
const LOCK: usize = 0;
const LOCKED: u64 = 1;
const VERSION_STEP: u32 = 2;

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

    /// How many keys a line has places for.
    #[inline]
    pub(crate) const fn slots(self) -> usize {
        match self {
            Self::Lean => SLOTS_LEAN,
            Self::Full { .. } => SLOTS_FULL,
        }
    }

    /// How many keys, all in debt, there can be in ten lines so that one in thirty finds its line full.
    pub(crate) const fn keys_per_ten_lines(self) -> usize {
        match self {
            Self::Lean => 27,
            Self::Full { .. } => 43,
        }
    }

    /// How many words come before the states.
    #[inline]
    const fn heads(self) -> usize {
        match self {
            Self::Lean => HEADS_LEAN,
            Self::Full { .. } => HEADS_FULL,
        }
    }

    /// How many words of state a record has.
    #[inline]
    const fn words(self) -> usize {
        match self {
            Self::Lean => 1,
            Self::Full { words } => words,
        }
    }

    /// How many words lie together; none when that is more than there can be.
    pub(crate) const fn line_words(self) -> Option<usize> {
        match self {
            Self::Lean => Some(HEADS_LEAN + SLOTS_LEAN),
            Self::Full { words } => match words.checked_mul(1 + SLOTS_FULL) {
                Some(states) => states.checked_add(HEADS_FULL),
                None => None,
            },
        }
    }

    /// How many words of a line's floor lie elsewhere.
    #[inline]
    pub(crate) const fn floor_words(self) -> usize {
        match self {
            Self::Lean => 1,
            Self::Full { .. } => 0,
        }
    }
}

/// A line, where it lies.
#[derive(Clone, Copy)]
pub(crate) struct Line<'t> {
    words: &'t [AtomicU64],
    /// The floor's state where that lies elsewhere.
    floor: &'t [AtomicU64],
    shape: Shape,
}

/// The line's lock word as it was once seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// The right to change a line, until it is dropped.
pub(crate) struct Locked<'t> {
    head: &'t AtomicU64,
}

/// One record of a line, to look at, or to change while the line is [`Locked`].
#[derive(Clone, Copy)]
pub(crate) struct Slot<'t> {
    /// The word whose high half is the record's 32 bits; none in a lean line, where they are always zero.
    head: Option<&'t AtomicU64>,
    state: &'t [AtomicU64],
}

impl<'t> Line<'t> {
    /// A line of `shape` made of `words`, and of `floor` elsewhere, which are as many as the shape says.
    #[inline(always)]
    pub(crate) fn new(words: &'t [AtomicU64], floor: &'t [AtomicU64], shape: Shape) -> Self {
        Self { words, floor, shape }
    }

    /// What the line's lock says, to be compared later.
    #[inline(always)]
    pub(crate) fn version(&self) -> Version {
        Version(self.words[LOCK].load(Ordering::Acquire))
    }

    /// Whether all that was read since `version` was taken is what the line held at that time.
    #[inline]
    pub(crate) fn is_still(&self, version: Version) -> bool {
        // The loads before this must not sink below the one after it.
        fence(Ordering::Acquire);
        version.0 & LOCKED == 0 && self.words[LOCK].load(Ordering::Relaxed) == version.0
    }

    /// Takes the line if it is free and nobody has changed it since `version`.
    #[inline(always)]
    pub(crate) fn lock_still(&self, version: Version) -> Option<Locked<'t>> {
        let head = &self.words[LOCK];
        let (free, taken) = (version.0 & !LOCKED, version.0 | LOCKED);
        head.compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Locked::new(head))
    }

    /// Waits for the line to be free and takes it. Whoever holds it does so for some nanoseconds and never waits for anything but
    /// further lines, in one order for all.
    pub(crate) fn lock(&self) -> Locked<'t> {
        let head = &self.words[LOCK];
        let mut seen = head.load(Ordering::Relaxed);
        loop {
            match head.compare_exchange(seen & !LOCKED, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
            if seen & LOCKED != 0 {
                wait_while(|| head.load(Ordering::Relaxed) & LOCKED != 0);
            }
        }
        Locked::new(head)
    }

    /// Whether nobody has changed the line between `version` and the lock that the caller holds now.
    #[inline]
    pub(crate) fn was_still(&self, version: Version) -> bool {
        debug_assert!(self.is_locked());
        version.0 & LOCKED == 0 && self.words[LOCK].load(Ordering::Relaxed) == version.0 | LOCKED
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.words[LOCK].load(Ordering::Relaxed) & LOCKED != 0
    }

    /// The record that carries `fingerprint`. All are compared, without a branch for each: which one it is cannot be predicted, and a
    /// wrong guess costs more than all the comparisons.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u32) -> Option<usize> {
        let mut found = FLOOR;
        let mut compare = |index: usize, candidate: u64| {
            found = if candidate as u32 == fingerprint { index } else { found };
        };
        match self.shape {
            Shape::Lean => {
                compare(1, self.words[LOCK].load(Ordering::Relaxed) >> 32);
                for pair in 1..HEADS_LEAN {
                    let head = self.words[pair].load(Ordering::Relaxed);
                    compare(2 * pair, head);
                    compare(2 * pair + 1, head >> 32);
                }
            }
            Shape::Full { .. } => {
                for index in 1..HEADS_FULL {
                    compare(index, self.words[index].load(Ordering::Relaxed));
                }
            }
        }
        (found != FLOOR).then_some(found)
    }

    /// The word that has the fingerprint of the slot at `index`, and by how many bits it is shifted.
    fn fingerprint_at(&self, index: usize) -> (&'t AtomicU64, u32) {
        debug_assert!(index != FLOOR);
        match self.shape {
            Shape::Lean => (&self.words[index / 2], if index.is_multiple_of(2) { 0 } else { 32 }),
            Shape::Full { .. } => (&self.words[index], 0),
        }
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.shape.slots()
    }

    /// Whether no key has this slot.
    pub(crate) fn is_empty(&self, index: usize) -> bool {
        let (word, shift) = self.fingerprint_at(index);
        (word.load(Ordering::Relaxed) >> shift) as u32 == 0
    }

    /// The record at `index`.
    #[inline(always)]
    pub(crate) fn slot(&self, index: usize) -> Slot<'t> {
        let words = self.shape.words();
        let start = self.shape.heads() + index * words;
        match self.shape {
            Shape::Lean if index == FLOOR => Slot { head: None, state: self.floor },
            Shape::Lean => Slot { head: None, state: &self.words[start - words..start] },
            Shape::Full { .. } => Slot { head: Some(&self.words[index]), state: &self.words[start..start + words] },
        }
    }

    /// Gives the slot at `index` to the key with `fingerprint`. The record stays as it is.
    pub(crate) fn assign(&self, index: usize, fingerprint: u32) {
        debug_assert!(self.is_locked());
        let (word, shift) = self.fingerprint_at(index);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(fingerprint) << shift, Ordering::Relaxed);
    }

    /// Makes the record at `index` a fresh one.
    pub(crate) fn clear(&self, index: usize) {
        let mut slot = self.slot(index);
        slot.set_aux(0);
        (0..self.shape.words()).for_each(|word| slot.set_word(word, 0));
    }

    /// Lets the records at `a` and `b` change places. Keys do not move.
    pub(crate) fn swap(&self, a: usize, b: usize) {
        let (mut a, mut b) = (self.slot(a), self.slot(b));
        let aux = (a.aux(), b.aux());
        a.set_aux(aux.1);
        b.set_aux(aux.0);
        for word in 0..self.shape.words() {
            let values = (a.word(word), b.word(word));
            a.set_word(word, values.1);
            b.set_word(word, values.0);
        }
    }
}

const fn with_low(head: u64, low: u32) -> u64 {
    head & !(u32::MAX as u64) | low as u64
}

const fn with_high(head: u64, high: u32) -> u64 {
    head & u32::MAX as u64 | (high as u64) << 32
}

impl<'t> Locked<'t> {
    #[inline]
    fn new(head: &'t AtomicU64) -> Self {
        // No change may be seen before the lock is.
        fence(Ordering::Release);
        Self { head }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let head = self.head.load(Ordering::Relaxed);
        let version = (head as u32 & !(LOCKED as u32)).wrapping_add(VERSION_STEP);
        self.head.store(with_low(head, version), Ordering::Release);
    }
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
            head.store(with_high(head.load(Ordering::Relaxed), aux), Ordering::Relaxed);
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

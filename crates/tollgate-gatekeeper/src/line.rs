//! One line of the table: seven records, a floor, and a lock.
//!
//! ```text
//! word   0              1 .. 7                  8 ..
//!        floor's head   heads of the records    state words: the floor's, then those of the records
//!        aux | lock     aux | fingerprint
//! ```
//! All that must be looked at to find a key is in the first 64 bytes, and where a record has one word of state, as most do, the whole
//! line is 128 bytes: what the processor fetches together.
//!
//! The low half of the floor's head is a sequence lock: odd while somebody changes the line, and larger afterwards. Who only looks
//! compares it before and after and writes nothing, so any number of cores can refuse the same offender without taking the line from
//! each other. Every word is an atomic, so what a reader sees in the middle of a change is wrong, never undefined, and is thrown away.

use tollgate_core::record::Record;

use crate::sync::{AtomicU64, Ordering, fence, wait_while};

/// Records in a line, the floor not among them: few where a model checker has to try every order of looking at them.
pub(crate) const SLOTS: usize = if cfg!(tollgate_model) { 2 } else { 7 };
const HEADS: usize = SLOTS + 1;
/// The floor is record 0; the slots are records 1 to 7.
pub(crate) const FLOOR: usize = 0;
const LOCKED: u64 = 1;
const VERSION_STEP: u32 = 2;

/// How many words a line takes whose records have `words` words of state.
pub(crate) const fn line_words(words: usize) -> Option<usize> {
    match words.checked_add(1) {
        Some(stride) => stride.checked_mul(HEADS),
        None => None,
    }
}

/// A line, where it lies.
#[derive(Clone, Copy)]
pub(crate) struct Line<'t> {
    heads: &'t [AtomicU64; HEADS],
    states: &'t [AtomicU64],
    words: usize,
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
    head: &'t AtomicU64,
    state: &'t [AtomicU64],
}

impl<'t> Line<'t> {
    /// The line in `memory` that starts at its first word. The slice must be as long as [`line_words`] says.
    #[inline]
    pub(crate) fn new(memory: &'t [AtomicU64], words: usize) -> Self {
        let (heads, states) = memory.split_first_chunk().expect("a line is never shorter than its heads");
        Self { heads, states, words }
    }

    /// What the line's lock says, to be compared later.
    #[inline]
    pub(crate) fn version(&self) -> Version {
        Version(self.heads[FLOOR].load(Ordering::Acquire))
    }

    /// Whether all that was read since `version` was taken is what the line held at that time.
    #[inline]
    pub(crate) fn is_still(&self, version: Version) -> bool {
        // The loads before this must not sink below the one after it.
        fence(Ordering::Acquire);
        version.0 & LOCKED == 0 && self.heads[FLOOR].load(Ordering::Relaxed) == version.0
    }

    /// Takes the line if it is free and nobody has changed it since `version`.
    #[inline]
    pub(crate) fn lock_still(&self, version: Version) -> Option<Locked<'t>> {
        let head = &self.heads[FLOOR];
        let (free, taken) = (version.0 & !LOCKED, version.0 | LOCKED);
        head.compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Locked::new(head))
    }

    /// Waits for the line to be free and takes it. Whoever holds it does so for some nanoseconds and never waits for anything but
    /// further lines, in one order for all.
    pub(crate) fn lock(&self) -> Locked<'t> {
        let head = &self.heads[FLOOR];
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
        version.0 & LOCKED == 0 && self.heads[FLOOR].load(Ordering::Relaxed) == version.0 | LOCKED
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.heads[FLOOR].load(Ordering::Relaxed) & LOCKED != 0
    }

    /// The record that carries `fingerprint`. All are compared, without a branch for each: which one it is cannot be predicted, and a
    /// wrong guess costs more than all the comparisons.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u32) -> Option<usize> {
        let mut found = FLOOR;
        for (index, head) in self.heads.iter().enumerate().skip(1) {
            found = if head.load(Ordering::Relaxed) as u32 == fingerprint { index } else { found };
        }
        (found != FLOOR).then_some(found)
    }

    /// Whether no key has this slot.
    pub(crate) fn is_empty(&self, index: usize) -> bool {
        self.heads[index].load(Ordering::Relaxed) as u32 == 0
    }

    /// The record at `index`.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot<'t> {
        Slot { head: &self.heads[index], state: &self.states[index * self.words..][..self.words] }
    }

    /// Gives the slot at `index` to the key with `fingerprint`. The record stays as it is.
    pub(crate) fn assign(&self, index: usize, fingerprint: u32) {
        debug_assert!(index != FLOOR && self.is_locked());
        let head = self.heads[index].load(Ordering::Relaxed);
        self.heads[index].store(with_low(head, fingerprint), Ordering::Relaxed);
    }

    /// Makes the record at `index` a fresh one.
    pub(crate) fn clear(&self, index: usize) {
        let mut slot = self.slot(index);
        slot.set_aux(0);
        (0..self.words).for_each(|word| slot.set_word(word, 0));
    }

    /// Lets the records at `a` and `b` change places. Keys do not move.
    pub(crate) fn swap(&self, a: usize, b: usize) {
        let (mut a, mut b) = (self.slot(a), self.slot(b));
        let aux = (a.aux(), b.aux());
        a.set_aux(aux.1);
        b.set_aux(aux.0);
        for word in 0..self.words {
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
        (self.head.load(Ordering::Relaxed) >> 32) as u32
    }

    #[inline]
    fn set_aux(&mut self, aux: u32) {
        self.head.store(with_high(self.head.load(Ordering::Relaxed), aux), Ordering::Relaxed);
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

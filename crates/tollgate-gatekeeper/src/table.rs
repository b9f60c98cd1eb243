//! The records of one rule for all keys, in memory that never grows.
//!
//! A map that grows can be made to eat the machine, and one that forgets its oldest entries hands an offender a fresh budget for the price
//! of some invented keys. Here a key belongs to one line of nine records, or of seven ([`Line`]). When all are taken, a newcomer takes the
//! place of a record that is clear, which loses nothing, or else of the one in best standing, and then the line's floor absorbs
//! that record. A key that is not found starts from the floor as long as that is not clear. So:
//!
//! - No key is ever better off than it would be in a table without bounds, whatever is sprayed at it.
//! - An innocent newcomer is worse off by at most the floor, which is at most the best standing of five keys that are all in debt: an
//!   attacker must keep five keys per line in debt, in all lines, all the time, and then still cannot get more than each line's share.
//!
//! A decision takes as long as the way to memory. Where records are small, four of the nine are in the line's [`Front`], which a processor
//! keeps at hand however large the table is; the other five are only looked at while somebody there is in debt.
//!
//! A record that cannot become clear by itself, because its requests are at work, is never given up: then newcomers share the floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::front::{self, Front};
use crate::hash::{KeyHash, KeyHasher, Seed};
use crate::line::{self, Line, Shape};
use crate::memory::{Memory, NoMemory};
use crate::seat::Seat;

/// What the processor fetches at once: 64 bytes.
const WORDS_FETCHED: usize = 8;
/// All fronts together: what a processor of today keeps at hand and still has room for other work.
const FRONT_BYTES_MAX: usize = 12 << 20;

/// The records of one rule for all keys.
pub(crate) struct Table {
    id: u32,
    memory: Memory,
    shape: Shape,
    plot: Plot,
    hasher: KeyHasher,
    strain: Strain,
}

/// How the memory of a table is divided: all fronts, then all backs, then all floors that lie outside of their lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plot {
    fronts: usize,
    front_words: usize,
    backs_per_front: usize,
}

impl Plot {
    /// As many fronts as the cache can hold, and behind each as many backs as there is memory for, but at least one.
    fn new(shape: Shape, bytes: usize) -> Option<Self> {
        let front_words = shape.front_words()?;
        let words = bytes / size_of::<u64>();
        let per_back = shape.back_words() + shape.floor_words();
        let fronts_max = FRONT_BYTES_MAX / size_of::<u64>() / front_words;
        let backs_per_front = match shape {
            Shape::Lean => words.div_ceil(fronts_max).saturating_sub(front_words).div_ceil(per_back).max(1),
            Shape::Full { .. } => 0,
        };
        let fronts = words / (front_words + backs_per_front * per_back);
        (fronts > 0).then_some(Self { fronts, front_words, backs_per_front })
    }

    fn backs(self) -> usize {
        self.fronts * self.backs_per_front
    }

    /// Which front and which back the key with `hash` has. The high bits of the hash decide on both, so that backs next to each other
    /// share their front, and nobody else's.
    #[inline]
    fn front_and_back(self, hash: KeyHash) -> (usize, usize) {
        (hash.line(self.fronts as u64), hash.line(self.backs() as u64))
    }
}

/// How often a table had too few places. All zero in a table that is large enough.
#[derive(Debug, Default)]
pub(crate) struct Strain {
    pub(crate) evicted: AtomicU64,
    pub(crate) from_floor: AtomicU64,
    pub(crate) shared: AtomicU64,
}

/// How large a table is, and how often it was too small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    /// Its size.
    pub bytes: usize,
    /// How many keys it has places for.
    pub places: usize,
    /// How often a key that was not clear yet lost its place. Its debt went into the floor of its line.
    pub evicted: u64,
    /// How often a key that had no place started from a floor that was not clear, and so with less than a fresh budget.
    pub from_floor: u64,
    /// How often a key was counted together with others, because all places had requests at work.
    pub shared: u64,
}

/// Why a table cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTable {
    /// Not even one line fits.
    TooSmall {
        /// The least that works.
        bytes_min: usize,
    },
    /// The machine has not that much.
    NoMemory(NoMemory),
}

impl core::fmt::Display for NoTable {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooSmall { bytes_min } => write!(formatter, "a table for this rule takes at least {bytes_min} bytes"),
            Self::NoMemory(no_memory) => no_memory.fmt(formatter),
        }
    }
}

impl core::error::Error for NoTable {}

/// How many bytes a table of `rule` takes at least: one line.
pub fn table_bytes_min(rule: &Rule) -> usize {
    let shape = Shape::of(rule);
    let words = shape.front_words().and_then(|words| words.checked_add(shape.back_words() + shape.floor_words()));
    words.and_then(|words| words.checked_mul(size_of::<u64>())).unwrap_or(usize::MAX)
}

/// How many bytes a table of `rule` needs for `keys` keys.
///
/// Keys fall into lines by chance, so more places are needed than there are keys: with as many as this, one key in thirty finds its line
/// full if all are in debt at once.
pub fn table_bytes_for(rule: &Rule, keys: usize) -> usize {
    let bytes_min = table_bytes_min(rule);
    let (keys_per_ten, bytes) = match Shape::of(rule) {
        // What counts is the backs, since the fronts are few where keys are many; where they are not, there is room to spare.
        Shape::Lean => (27, size_of::<u64>() * (line::BACK_WORDS + line::FLOOR_WORDS)),
        Shape::Full { .. } => (43, bytes_min),
    };
    keys.saturating_mul(10).div_ceil(keys_per_ten).saturating_mul(bytes).max(bytes_min)
}

impl Table {
    /// A table for records of `rule`, of at most `bytes` bytes.
    pub(crate) fn new(rule: &Rule, bytes: usize, seed: Seed) -> Result<Arc<Self>, NoTable> {
        // Ids order the locks of all tables of the process, whichever limiter they belong to.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let shape = Shape::of(rule);
        let plot = Plot::new(shape, bytes).ok_or(NoTable::TooSmall { bytes_min: table_bytes_min(rule) })?;
        let words = plot.fronts * plot.front_words + plot.backs() * (shape.back_words() + shape.floor_words());
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory: Memory::zeroed(words).map_err(NoTable::NoMemory)?,
            shape,
            plot,
            hasher: KeyHasher::new(seed),
            strain: Strain::default(),
        }))
    }

    /// What tells this table from all others of the process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// What a key is hashed with.
    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Says that the line of `hash` will be wanted soon.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        let start = hash.line(self.plot.fronts as u64) * self.plot.front_words;
        self.memory.prefetch(start);
        if self.plot.front_words > WORDS_FETCHED {
            self.memory.prefetch(start + WORDS_FETCHED);
        }
    }

    /// The front of the line of `hash`, which will be wanted soon, in a table whose lines are known to be lean.
    #[inline]
    pub(crate) fn front_soon(&self, hash: KeyHash) -> Front<'_> {
        debug_assert_eq!(self.shape, Shape::Lean);
        let start = hash.line(self.plot.fronts as u64) * front::WORDS;
        self.memory.prefetch(start);
        self.front_at(start)
    }

    #[inline]
    fn front_at(&self, start: usize) -> Front<'_> {
        Front::new(self.memory[start..].first_chunk().expect("the front of a line lies in the table as a whole"))
    }

    /// The line of `hash`.
    #[inline]
    pub(crate) fn line(&self, hash: KeyHash) -> Line<'_> {
        let Plot { fronts, front_words, .. } = self.plot;
        let (front, back) = self.plot.front_and_back(hash);
        let start = front * front_words;
        match self.shape {
            Shape::Lean => {
                let backs = &self.memory[fronts * front_words..];
                let (backs, floors) = backs.split_at(self.plot.backs() * line::BACK_WORDS);
                Line::Lean {
                    front: self.front_at(start),
                    back: &backs[back * line::BACK_WORDS..][..line::BACK_WORDS],
                    floor: &floors[back * line::FLOOR_WORDS..][..line::FLOOR_WORDS],
                }
            }
            Shape::Full { words } => {
                Line::Full { words: &self.memory[start..start + front_words], record_words: words }
            }
        }
    }

    /// Where the key with `hash` sits at `now`, or would sit.
    #[inline]
    pub(crate) fn seat<'t>(&'t self, rule: &'t Rule, hash: KeyHash, now: Moment) -> Seat<'t> {
        Seat::new(self.line(hash), rule, &self.strain, hash.fingerprint(), now)
    }

    /// Counts that a key was charged together with others.
    pub(crate) fn count_shared(&self) {
        self.strain.shared.fetch_add(1, Ordering::Relaxed);
    }

    /// Its size and its strain.
    pub(crate) fn report(&self) -> TableReport {
        TableReport {
            bytes: self.memory.len() * size_of::<u64>(),
            places: self.plot.fronts * self.shape.slots().0 + self.plot.backs() * self.shape.slots().1,
            evicted: self.strain.evicted.load(Ordering::Relaxed),
            from_floor: self.strain.from_floor.load(Ordering::Relaxed),
            shared: self.strain.shared.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fronts_stay_near_and_everybody_behind_one_shares_its_lock(bytes in 136..1_usize << 34, hash in any::<u64>()) {
            let plot = Plot::new(Shape::Lean, bytes).unwrap();
            let used = size_of::<u64>() * (plot.fronts * plot.front_words + plot.backs() * 9);
            // What is left over is less than a part in twenty, or than one line.
            prop_assert!(used <= bytes && bytes - used < (bytes / 20).max(136));
            prop_assert!(plot.fronts * plot.front_words * size_of::<u64>() <= FRONT_BYTES_MAX);
            let (front, back) = plot.front_and_back(KeyHash(hash));
            prop_assert_eq!(back / plot.backs_per_front, front);
        }
    }

    #[test]
    fn less_than_one_line_is_no_table() {
        assert_eq!(Plot::new(Shape::Lean, 135), None);
        assert_eq!(Plot::new(Shape::Full { words: usize::MAX }, usize::MAX), None);
    }
}

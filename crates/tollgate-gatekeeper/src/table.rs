//! The records of one rule for all keys, in memory that never grows.
//!
//! A map that grows can be made to eat the machine, and one that forgets its oldest entries hands an offender a fresh budget for the price
//! of some invented keys. Here a key belongs to one line of five records, or of seven ([`Line`]). When all are taken, a newcomer takes the
//! place of a record that is clear, which loses nothing, or else of the one in best standing, and then the line's floor absorbs
//! that record. A key that is not found starts from the floor as long as that is not clear. So:
//!
//! - No key is ever better off than it would be in a table without bounds, whatever is sprayed at it.
//! - An innocent newcomer is worse off by at most the floor, which is at most the best standing of five keys that are all in debt: an
//!   attacker must keep five keys per line in debt, in all lines, all the time, and then still cannot get more than each line's share.
//!
//! A record that cannot become clear by itself, because its requests are at work, is never given up: then newcomers share the floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::hash::{KeyHash, KeyHasher, Seed};
use crate::line::{Line, Shape};
use crate::memory::{Memory, NoMemory};
use crate::seat::Seat;

/// What the processor fetches at once: 64 bytes.
const WORDS_FETCHED: usize = 8;
const LEAN_WORDS: usize = Shape::Lean.line_words().expect("a lean line is short");

/// The records of one rule for all keys.
pub(crate) struct Table {
    id: u32,
    memory: Memory,
    lines: u64,
    shape: Shape,
    line_words: usize,
    /// Where the floors begin that lie outside of their lines.
    floors: usize,
    hasher: KeyHasher,
    strain: Strain,
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
    let words = shape.line_words().and_then(|words| words.checked_add(shape.floor_words()));
    words.and_then(|words| words.checked_mul(size_of::<u64>())).unwrap_or(usize::MAX)
}

/// How many bytes a table of `rule` needs for `keys` keys.
///
/// Keys fall into lines by chance, so more places are needed than there are keys: with as many as this, one key in thirty finds its line
/// full if all are in debt at once.
pub fn table_bytes_for(rule: &Rule, keys: usize) -> usize {
    let lines = keys.saturating_mul(10).div_ceil(Shape::of(rule).keys_per_ten_lines());
    table_bytes_min(rule).saturating_mul(lines.max(1))
}

impl Table {
    /// A table for records of `rule`, of at most `bytes` bytes.
    pub(crate) fn new(rule: &Rule, bytes: usize, seed: Seed) -> Result<Arc<Self>, NoTable> {
        // Ids order the locks of all tables of the process, whichever limiter they belong to.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let bytes_min = table_bytes_min(rule);
        let lines = bytes / bytes_min;
        if lines == 0 {
            return Err(NoTable::TooSmall { bytes_min });
        }
        let shape = Shape::of(rule);
        let line_words = bytes_min / size_of::<u64>() - shape.floor_words();
        let floors = lines * line_words;
        let memory = Memory::zeroed(floors + lines * shape.floor_words()).map_err(NoTable::NoMemory)?;
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            lines: lines as u64,
            shape,
            line_words,
            floors,
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
        let start = hash.line(self.lines) * self.line_words;
        self.memory.prefetch(start);
        if self.line_words > WORDS_FETCHED {
            self.memory.prefetch(start + WORDS_FETCHED);
        }
    }

    /// The line of `hash`.
    #[inline]
    pub(crate) fn line(&self, hash: KeyHash) -> Line<'_> {
        self.line_of(hash, self.shape, self.line_words)
    }

    /// The line of `hash`, which will be wanted soon, in a table whose lines are known to be lean: the compiler knows its figures then.
    #[inline]
    pub(crate) fn lean_line_soon(&self, hash: KeyHash) -> Line<'_> {
        debug_assert_eq!(self.shape, Shape::Lean);
        self.memory.prefetch(hash.line(self.lines) * LEAN_WORDS);
        self.line_of(hash, Shape::Lean, LEAN_WORDS)
    }

    #[inline]
    fn line_of(&self, hash: KeyHash, shape: Shape, line_words: usize) -> Line<'_> {
        let line = hash.line(self.lines);
        let start = line * line_words;
        let floor = self.floors + line * shape.floor_words();
        let (words, floor) = (start..start + line_words, floor..floor + shape.floor_words());
        Line::new(&self.memory[words], &self.memory[floor], shape)
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
            places: self.lines as usize * self.shape.slots(),
            evicted: self.strain.evicted.load(Ordering::Relaxed),
            from_floor: self.strain.from_floor.load(Ordering::Relaxed),
            shared: self.strain.shared.load(Ordering::Relaxed),
        }
    }
}

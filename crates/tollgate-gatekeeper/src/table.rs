//! The records of one rule for all keys, in memory that never grows.
//!
//! A map that grows can be made to eat the machine, and one that forgets its oldest entries hands an offender a fresh budget for the price
//! of some invented keys. Here a key belongs to one line of seven records ([`Line`]). When all seven are taken, a newcomer takes the
//! place of a record that is clear, which loses nothing, or else of the one in best standing, and then the line's floor absorbs
//! that record. A key that is not found starts from the floor as long as that is not clear. So:
//!
//! - No key is ever better off than it would be in a table without bounds, whatever is sprayed at it.
//! - An innocent newcomer is worse off by at most the floor, which is at most the best standing of seven keys that are all in debt: an
//!   attacker must keep seven keys per line in debt, in all lines, all the time, and then still cannot get more than each line's share.
//!
//! A record that cannot become clear by itself, because its requests are at work, is never given up: then newcomers share the floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::hash::{KeyHash, KeyHasher, Seed};
use crate::line::{Line, SLOTS, line_words};
use crate::memory::{Memory, NoMemory};
use crate::seat::Seat;

/// The records of one rule for all keys.
pub(crate) struct Table {
    id: u32,
    memory: Memory,
    lines: u64,
    line_words: usize,
    words: usize,
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
    line_words(rule.words()).and_then(|words| words.checked_mul(size_of::<u64>())).unwrap_or(usize::MAX)
}

/// How many bytes a table of `rule` needs so that next to none of `keys` keys that are all in debt lacks a place.
///
/// Keys fall into lines by chance, so seven places serve four keys on average: then one key in fifty finds its line full.
pub fn table_bytes_for(rule: &Rule, keys: usize) -> usize {
    table_bytes_min(rule).saturating_mul(keys.div_ceil(4).max(1))
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
        let line_words = bytes_min / size_of::<u64>();
        let memory = Memory::zeroed(lines * line_words).map_err(NoTable::NoMemory)?;
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            lines: lines as u64,
            line_words,
            words: rule.words(),
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
        self.memory.prefetch(start + SLOTS + 1);
    }

    /// The line of `hash`.
    #[inline]
    pub(crate) fn line(&self, hash: KeyHash) -> Line<'_> {
        let start = hash.line(self.lines) * self.line_words;
        Line::new(&self.memory[start..start + self.line_words], self.words)
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
            places: self.lines as usize * SLOTS,
            evicted: self.strain.evicted.load(Ordering::Relaxed),
            from_floor: self.strain.from_floor.load(Ordering::Relaxed),
            shared: self.strain.shared.load(Ordering::Relaxed),
        }
    }
}

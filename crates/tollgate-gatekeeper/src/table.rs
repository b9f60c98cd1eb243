//! The records of one rule for all keys, in memory of fixed size. A [`Limiter`](crate::limiter::Limiter) has one table
//! per rule. A record has debt while some of its charges are not paid back, and is *clear* from then on.
//!
//! A growing map can exhaust memory, and a map that evicts its oldest entries gives an offender a fresh
//! budget for the price of some invented keys. Here a key belongs to one row of nine or seven records
//! ([`Row`]). If all are in use, a new key takes a record without debt, which loses nothing, or else the one
//! that is clear soonest, which is merged into the row's overflow record. A key without a record starts from
//! the overflow record while that has debt. Two properties follow:
//!
//! - No key ever gets more than in an unbounded table, for any sequence of keys.
//! - A new key gets less by at most the overflow record, which is at most the smallest debt of five keys that
//!   all have debt. An attacker must keep five keys per row in debt, in all rows, all the time, and still
//!   gets only each row's share.
//!
//! The time of a decision is dominated by memory access. For small records, four of the nine are in the row's
//! [`HotSlots`], which fits the cache for any size of the table; the other five are read only while one of them
//! has debt.
//!
//! A record with requests in flight does not become clear by itself and is never evicted; new keys then share
//! the overflow record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::rule::Rule;
use tollgate_core::time::Moment;

use crate::hash::{KeyHash, KeyHasher, Seed};
use crate::hot_slots::{self, HotSlots};
use crate::key_record::KeyRecord;
use crate::memory::Memory;
use crate::row::{self, Row, RowLayout};

/// The number of words per cache line of 64 bytes.
const WORDS_PER_CACHE_LINE: usize = 8;
/// The maximum size of all hot slots of a table, in bytes. They must fit the cache with room for other work.
const HOT_BYTES_MAX: usize = 12 << 20;

/// The records of one rule for all keys.
pub(crate) struct Table {
    /// The table's identifier within the process.
    pub(crate) id: u32,
    memory: Memory,
    /// The layout of its rows.
    shape: RowLayout,
    layout: TableLayout,
    /// The hasher of the table's keys.
    pub(crate) hasher: KeyHasher,
    pub(crate) pressure: TablePressure,
}

/// The division of a table's memory: all hot slots, then all cold slots, then all overflow records outside of
/// their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableLayout {
    /// The number of rows, each of which has one group of hot slots.
    hot_groups: usize,
    /// The number of words per row, without its cold slots.
    hot_words: usize,
    /// The number of groups of cold slots per row; 0 if rows are full ([`RowLayout`]).
    cold_per_hot: usize,
}

impl TableLayout {
    /// As many rows as fit the cache with their hot slots, and as many groups of cold slots per row as fit the memory,
    /// but at least one. Full rows have none, and are only limited by the memory. `None` if no row fits.
    fn new(shape: RowLayout, bytes: usize) -> Option<Self> {
        let hot_words = shape.hot_words()?;
        let words = bytes / size_of::<u64>();
        let words_per_cold = shape.cold_words();
        let hot_groups_max = HOT_BYTES_MAX / size_of::<u64>() / hot_words;
        let cold_per_hot = match shape {
            RowLayout::Compact => {
                words.div_ceil(hot_groups_max).saturating_sub(hot_words).div_ceil(words_per_cold).max(1)
            }
            RowLayout::Full { .. } => 0,
        };
        let hot_groups = words / (hot_words + cold_per_hot * words_per_cold);
        (hot_groups > 0).then_some(Self { hot_groups, hot_words, cold_per_hot })
    }

    fn cold_groups(self) -> usize {
        self.hot_groups * self.cold_per_hot
    }

    /// The hot and the cold group of the key with `hash`. The high bits of the hash determine both, so that
    /// adjacent cold groups share one hot group.
    #[inline]
    fn hot_and_cold(self, hash: KeyHash) -> (usize, usize) {
        (hash.row(self.hot_groups as u64), hash.row(self.cold_groups() as u64))
    }
}

/// Counters of a table that is too small, as in [`TableReport`]. All are zero if it is large enough.
#[derive(Debug, Default)]
pub(crate) struct TablePressure {
    pub(crate) evicted: AtomicU64,
    pub(crate) from_overflow: AtomicU64,
    pub(crate) shared: AtomicU64,
}

/// The size of a table, and how often it was too small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    /// The size in bytes.
    pub bytes: usize,
    /// The number of slots.
    pub places: usize,
    /// The number of keys with debt that were evicted. Their debt was merged into an overflow record.
    pub evicted: u64,
    /// The number of keys without a record that started from an overflow record with debt.
    pub from_overflow: u64,
    /// The number of charges to an overflow record because all slots had requests in flight.
    pub shared: u64,
}

/// The reason why a table cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The size is less than one row.
    #[error("a table for this rule needs at least {bytes_min} bytes")]
    TooSmall {
        /// The minimum size.
        bytes_min: usize,
    },
    /// The system does not provide the memory.
    #[error("cannot allocate {bytes} bytes for a table")]
    OutOfMemory {
        /// The requested size.
        bytes: usize,
    },
}

/// The minimum size of a table for `rule` in bytes: one row.
pub fn table_bytes_min(rule: &Rule) -> usize {
    let shape = RowLayout::of(rule);
    let words = shape.hot_words().and_then(|words| words.checked_add(shape.cold_words()));
    words.and_then(|words| words.checked_mul(size_of::<u64>())).unwrap_or(usize::MAX)
}

/// The size of a table for `keys` keys of `rule` in bytes.
///
/// Keys are distributed to rows at random, so more slots than keys are needed. With this size, one key in
/// thirty finds its row full if all keys have debt at once.
pub fn table_bytes_for(rule: &Rule, keys: usize) -> usize {
    let bytes_min = table_bytes_min(rule);
    let (keys_per_ten_groups, group_bytes) = match RowLayout::of(rule) {
        // 2.7 keys per group of five cold slots. Hot slots do not count, because they are few if there are many keys.
        // Smaller tables have room to spare.
        shape @ RowLayout::Compact => (27, size_of::<u64>() * shape.cold_words()),
        // 4.3 keys per row of seven slots.
        RowLayout::Full { .. } => (43, bytes_min),
    };
    keys.saturating_mul(10).div_ceil(keys_per_ten_groups).saturating_mul(group_bytes).max(bytes_min)
}

impl Table {
    /// A table for records of `rule`, of at most `bytes` bytes.
    pub(crate) fn new(rule: &Rule, bytes: usize, seed: Seed) -> Result<Arc<Self>, TableError> {
        // The order of identifiers is the locking order of all tables of the process, for any limiter.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let shape = RowLayout::of(rule);
        let layout = TableLayout::new(shape, bytes).ok_or(TableError::TooSmall { bytes_min: table_bytes_min(rule) })?;
        let words = layout.hot_groups * layout.hot_words + layout.cold_groups() * shape.cold_words();
        let out_of_memory = TableError::OutOfMemory { bytes: words.saturating_mul(size_of::<u64>()) };
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory: Memory::zeroed(words).ok_or(out_of_memory)?,
            shape,
            layout,
            hasher: KeyHasher::new(seed),
            pressure: TablePressure::default(),
        }))
    }

    /// Prefetches the row of `hash`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        let start = hash.row(self.layout.hot_groups as u64) * self.layout.hot_words;
        self.memory.prefetch(start);
        if self.layout.hot_words > WORDS_PER_CACHE_LINE {
            self.memory.prefetch(start + WORDS_PER_CACHE_LINE);
        }
    }

    /// Prefetches and returns the hot slots of `hash`. The rows of the table must be compact.
    #[inline]
    pub(crate) fn hot_slots_soon(&self, hash: KeyHash) -> HotSlots<'_> {
        debug_assert_eq!(self.shape, RowLayout::Compact);
        let start = hash.row(self.layout.hot_groups as u64) * hot_slots::WORDS;
        self.memory.prefetch(start);
        self.hot_slots_at(start)
    }

    #[inline]
    fn hot_slots_at(&self, start: usize) -> HotSlots<'_> {
        HotSlots(self.memory[start..].first_chunk().expect("the hot slots of a row are within the table"))
    }

    /// The row of `hash`.
    #[inline]
    pub(crate) fn row(&self, hash: KeyHash) -> Row<'_> {
        let TableLayout { hot_groups, hot_words, .. } = self.layout;
        let (hot, cold) = self.layout.hot_and_cold(hash);
        let start = hot * hot_words;
        match self.shape {
            RowLayout::Compact => {
                let cold_groups = &self.memory[hot_groups * hot_words..];
                let (cold_groups, overflows) = cold_groups.split_at(self.layout.cold_groups() * row::COLD_WORDS);
                Row::Compact {
                    hot: self.hot_slots_at(start),
                    cold: &cold_groups[cold * row::COLD_WORDS..][..row::COLD_WORDS],
                    overflow: &overflows[cold * row::OVERFLOW_WORDS..][..row::OVERFLOW_WORDS],
                }
            }
            RowLayout::Full { words } => {
                Row::Full { words: &self.memory[start..start + hot_words], record_words: words }
            }
        }
    }

    /// The record of the key with `hash` at `now`, or the one that it would get.
    #[inline]
    pub(crate) fn record<'t>(&'t self, rule: &'t Rule, hash: KeyHash, now: Moment) -> KeyRecord<'t> {
        KeyRecord::new(self.row(hash), rule, &self.pressure, hash.fingerprint(), now)
    }

    /// The size and the counters.
    pub(crate) fn report(&self) -> TableReport {
        TableReport {
            bytes: self.memory.len() * size_of::<u64>(),
            places: self.layout.hot_groups * self.shape.slots().0 + self.layout.cold_groups() * self.shape.slots().1,
            evicted: self.pressure.evicted.load(Ordering::Relaxed),
            from_overflow: self.pressure.from_overflow.load(Ordering::Relaxed),
            shared: self.pressure.shared.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hot_slots_fit_the_cache_and_cold_groups_share_their_lock(bytes in 136..1_usize << 34, hash in any::<u64>()) {
            let layout = TableLayout::new(RowLayout::Compact, bytes).unwrap();
            let used = size_of::<u64>() * (layout.hot_groups * layout.hot_words + layout.cold_groups() * 9);
            // The unused part is less than 5 %, or less than one row.
            prop_assert!(used <= bytes && bytes - used < (bytes / 20).max(136));
            prop_assert!(layout.hot_groups * layout.hot_words * size_of::<u64>() <= HOT_BYTES_MAX);
            let (hot, cold) = layout.hot_and_cold(KeyHash(hash));
            prop_assert_eq!(cold / layout.cold_per_hot, hot);
        }
    }

    #[test]
    fn less_than_one_row_is_no_table() {
        assert_eq!(TableLayout::new(RowLayout::Compact, 135), None);
        assert_eq!(TableLayout::new(RowLayout::Full { words: usize::MAX }, usize::MAX), None);
    }
}

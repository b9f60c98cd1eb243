//! Passes refusals from the threads of a gate to the watch.
//!
//! A thread that serves requests must not wait for the watch, which writes to disk. Each thread therefore counts
//! refusals in its own table, and the watch swaps that table for an empty one once per second; the watch holds the lock
//! of the table only for the swap. Admitted requests do not use this module.
//!
//! The watch pays per key, not per refusal: each key is looked up, counted and written to disk. While thousands of keys
//! are refused, mostly the same ones are refused in the next second. Their refusals are then gathered for a few seconds
//! ([`Feed::is_due`]), unless a table fills up.
//!
//! A table is read as a whole and cleared as a whole. It therefore needs no allocation per key and no removal: it has a
//! slot of 16 bytes per key, and one buffer with all names. Keys are identified by a 64-bit hash with a secret seed;
//! comparing names, which are elsewhere in memory, took as long as everything else together. Tables are bounded, and
//! refusals that do not fit are counted as dropped.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};

use super::escape::escape_key;
use super::record::Entry;
use crate::per_thread::PerThread;

/// The number of distinct keys per table.
const TABLE_KEYS_MAX: usize = 32_768;
/// The total length of the names in a table.
const TABLE_NAME_BYTES_MAX: usize = 2 << 20;
/// If the last drain had at least this number of keys, refusals are gathered for several seconds.
const KEYS_TO_GATHER: usize = 2048;
/// Longest time for which refusals are gathered, in calls of [`Feed::is_due`], which is called once per second.
const GATHER_SECONDS_MAX: u32 = 4;
/// The number of refusals that are looked up together, see [`RefusalTable::settle`].
const BATCH_REFUSALS: usize = 16;
/// The number of slots when the first key is added. It doubles when needed, so it is always a power of two.
const SLOTS_MIN: usize = 256;
/// Longer classes are truncated. Keys are not longer than this.
pub(crate) use tollgate_gatekeeper::names::NAME_BYTES_MAX;

/// Refusals of all threads on their way to the watch.
#[derive(Default)]
pub(crate) struct Feed {
    hasher: RandomState,
    tables: PerThread<RefusalTable>,
    /// Tables that were drained; the next swap reuses them.
    drained: Mutex<Vec<RefusalTable>>,
    dropped: AtomicU64,
    /// Number of keys at the last drain.
    keys_last: AtomicUsize,
    /// Number of calls of [`Feed::is_due`] since the last drain.
    turns: AtomicU32,
}

/// Refusals recorded by one thread.
#[derive(Default)]
struct RefusalTable {
    /// Open addressing by hash with linear probing; at most three quarters are used.
    slots: Vec<KeySlot>,
    keys: usize,
    /// Per key: length of the class, length of the key, class, key.
    names: Vec<u8>,
    /// Refusals that are not counted yet, with names in the same format.
    pending: Vec<PendingRefusal>,
    pending_names: Vec<u8>,
}

/// A refusal that is not counted yet.
#[derive(Clone, Copy)]
struct PendingRefusal {
    hash: u64,
    /// Offset of the name, which is read only if the key is new.
    name: u32,
}

/// Count of one key; the slot is empty while `count` is 0.
#[derive(Clone, Copy, Default)]
struct KeySlot {
    hash: u64,
    count: u32,
    /// Offset of the name.
    name: u32,
}

/// Refusals drained from all tables, which are cleared when this is dropped.
pub(crate) struct DrainedRefusals<'a>(MutexGuard<'a, Vec<RefusalTable>>);

impl Feed {
    /// Records a refused request.
    pub(crate) fn refused(&self, class: &str, key: &[u8]) {
        let class = &class.as_bytes()[..class.len().min(NAME_BYTES_MAX)];
        let key = &key[..key.len().min(NAME_BYTES_MAX)];
        let hash = self.hasher.hash_one((class, key));
        let dropped = self.tables.own().note(hash, class, key);
        self.count_dropped(dropped);
    }

    fn count_dropped(&self, refusals: u64) {
        if refusals > 0 {
            self.dropped.fetch_add(refusals, Ordering::Relaxed);
        }
    }

    /// Whether the watch should drain the tables now. Call once per second.
    pub(crate) fn is_due(&self) -> bool {
        let turns = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        turns >= GATHER_SECONDS_MAX
            || self.keys_last.load(Ordering::Relaxed) < KEYS_TO_GATHER
            || self.tables.all().any(|table| table.is_filling_up())
    }

    /// Drains all tables.
    pub(crate) fn take(&self) -> DrainedRefusals<'_> {
        let mut taken = self.drained.lock();
        for (index, mut table) in self.tables.all().enumerate() {
            if taken.len() <= index {
                taken.push(RefusalTable::default());
            }
            if !table.is_empty() {
                std::mem::swap(&mut *table, &mut taken[index]);
            }
            drop(table);
            self.count_dropped(taken[index].settle());
        }
        self.keys_last.store(taken.iter().map(|table| table.keys).sum(), Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
        DrainedRefusals(taken)
    }

    /// Number of refusals that did not fit.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl DrainedRefusals<'_> {
    /// Refusals per key. A key that several threads refused occurs several times.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.0.iter().flat_map(RefusalTable::entries)
    }
}

impl Drop for DrainedRefusals<'_> {
    fn drop(&mut self) {
        self.0.iter_mut().filter(|table| !table.is_empty()).for_each(RefusalTable::clear);
    }
}

impl RefusalTable {
    fn is_empty(&self) -> bool {
        self.keys == 0 && self.pending.is_empty()
    }

    /// Whether the keys of another second might not fit.
    fn is_filling_up(&self) -> bool {
        self.keys > TABLE_KEYS_MAX / 2 || self.names.len() > TABLE_NAME_BYTES_MAX / 2
    }

    /// Records a refusal; returns the number of dropped ones.
    #[inline]
    fn note(&mut self, hash: u64, class: &[u8], key: &[u8]) -> u64 {
        self.pending.push(PendingRefusal { hash, name: self.pending_names.len() as u32 });
        write_name(&mut self.pending_names, class, key);
        if self.pending.len() < BATCH_REFUSALS { 0 } else { self.settle() }
    }

    /// Counts the pending refusals; returns the number of dropped ones.
    ///
    /// With many keys each slot is a cache miss, which takes longer than everything else here. All slots are therefore
    /// read once before any is updated, so that the misses overlap.
    fn settle(&mut self) -> u64 {
        let mask = self.slots.len().wrapping_sub(1);
        let loaded = self.pending.iter().filter_map(|refusal| self.slots.get(refusal.hash as usize & mask));
        black_box(loaded.fold(0, |all, slot| all ^ slot.count));
        let (pending, names) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.pending_names));
        let mut dropped = 0;
        for &PendingRefusal { hash, name } in &pending {
            if !self.count(hash) {
                let (class, key) = read_name(&names[name as usize..]);
                dropped += u64::from(!self.insert(hash, class, key));
            }
        }
        (self.pending, self.pending_names) = (pending, names);
        self.pending.clear();
        self.pending_names.clear();
        dropped
    }

    /// Counts a refusal of a known key; false if the key is new.
    #[inline]
    fn count(&mut self, hash: u64) -> bool {
        let Some(slot) = self.find(hash).map(|at| &mut self.slots[at]).filter(|slot| slot.count > 0) else {
            return false;
        };
        slot.count = slot.count.saturating_add(1);
        true
    }

    /// Index of the slot that the key has or would get.
    #[inline]
    fn find(&self, hash: u64) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        while self.slots[at].count > 0 && self.slots[at].hash != hash {
            at = (at + 1) & mask;
        }
        Some(at)
    }

    /// Adds a key; false if the table is full.
    #[cold]
    fn insert(&mut self, hash: u64, class: &[u8], key: &[u8]) -> bool {
        if self.keys == TABLE_KEYS_MAX || self.names.len() + 2 + class.len() + key.len() > TABLE_NAME_BYTES_MAX {
            return false;
        }
        if self.keys * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let Some(at) = self.find(hash) else { return false };
        self.slots[at] = KeySlot { hash, count: 1, name: self.names.len() as u32 };
        write_name(&mut self.names, class, key);
        self.keys += 1;
        true
    }

    fn grow(&mut self) {
        let length = (self.slots.len() * 2).max(SLOTS_MIN);
        let before = std::mem::replace(&mut self.slots, vec![KeySlot::default(); length]);
        for slot in before.into_iter().filter(|slot| slot.count > 0) {
            let Some(at) = self.find(slot.hash) else { continue };
            self.slots[at] = slot;
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.slots.iter().filter(|slot| slot.count > 0).map(|slot| {
            let (class, key) = read_name(&self.names[slot.name as usize..]);
            Entry { class: escape_key(class), key: escape_key(key), count: slot.count.into() }
        })
    }

    /// Removes all keys but keeps the memory, because the same keys are likely to be refused again.
    fn clear(&mut self) {
        self.slots.fill(KeySlot::default());
        self.names.clear();
        self.keys = 0;
    }
}

fn write_name(names: &mut Vec<u8>, class: &[u8], key: &[u8]) {
    names.extend_from_slice(&[class.len() as u8, key.len() as u8]);
    names.extend_from_slice(class);
    names.extend_from_slice(key);
}

/// Reads a class and a key written by [`write_name`].
fn read_name(names: &[u8]) -> (&[u8], &[u8]) {
    let (class, rest) = names[2..].split_at(usize::from(names[0]));
    (class, &rest[..usize::from(names[1])])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(feed: &Feed) -> Vec<(String, String, u64)> {
        let taken = feed.take();
        let left = taken.entries().map(|entry| (entry.class.into_owned(), entry.key.into_owned(), entry.count));
        let mut left: Vec<_> = left.collect();
        left.sort();
        left
    }

    #[test]
    fn refusals_are_counted_per_key_and_drained_once() {
        let feed = Feed::default();
        for round in 1..=3 {
            for _ in 0..3 {
                feed.refused("ip/32", b"203.0.113.7");
            }
            feed.refused("user", b"203.0.113.7");
            feed.refused("user", b"a\xffb");
            let expect = [("ip/32", "203.0.113.7", 3), ("user", "203.0.113.7", 1), ("user", "a\\xffb", 1)];
            let expect = expect.map(|(class, key, count)| (class.to_owned(), key.to_owned(), count));
            assert_eq!(left(&feed), expect, "{round}");
            assert_eq!(left(&feed), [], "{round}");
        }
    }

    #[test]
    fn no_refusal_is_lost_while_the_table_grows() {
        let feed = Feed::default();
        for keys in [10, 1_000, 20_000, 3] {
            for round in 0..2 {
                for number in 0..keys {
                    (0..=number % 3).for_each(|_| feed.refused("user", format!("number {number}").as_bytes()));
                }
                let left = left(&feed);
                assert_eq!(left.len(), keys, "{round}");
                for (_, key, count) in left {
                    let number: usize = key["number ".len()..].parse().unwrap();
                    assert_eq!(count, 1 + number as u64 % 3, "{key}");
                }
            }
        }
        assert_eq!(feed.dropped(), 0);
    }

    #[test]
    fn refusals_of_several_threads_are_each_drained_once() {
        const EACH: u64 = 50_000;
        let feed = Feed::default();
        let mut counted = 0;
        std::thread::scope(|scope| {
            let working: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..EACH).for_each(|at| feed.refused("user", &(at % 100).to_be_bytes()))))
                .collect();
            while !working.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                counted += feed.take().entries().map(|entry| entry.count).sum::<u64>();
            }
        });
        counted += feed.take().entries().map(|entry| entry.count).sum::<u64>();
        assert_eq!(counted, 4 * EACH);
    }

    #[test]
    fn the_number_of_keys_is_bounded_and_dropped_refusals_are_counted() {
        for long in [8, NAME_BYTES_MAX] {
            let feed = Feed::default();
            for number in 0..100_000_u64 {
                let mut key = vec![b'k'; long];
                key[..8].copy_from_slice(&number.to_be_bytes());
                feed.refused("user", &key);
            }
            let taken = feed.take();
            let kept = taken.entries().count();
            assert!(kept <= TABLE_KEYS_MAX);
            assert!(taken.0.iter().all(|table| table.names.len() <= TABLE_NAME_BYTES_MAX));
            assert_eq!(kept as u64 + feed.dropped(), 100_000);
        }
    }

    fn refuse(feed: &Feed, keys: std::ops::Range<usize>) {
        keys.for_each(|number| feed.refused("user", &number.to_be_bytes()));
    }

    #[test]
    fn refusals_of_few_keys_are_drained_every_second_and_of_many_every_four() {
        let feed = Feed::default();
        for _ in 0..2 {
            for keys in [0, 1, KEYS_TO_GATHER - 1] {
                refuse(&feed, 0..keys);
                assert!(feed.is_due(), "{keys}");
                assert_eq!(feed.take().entries().count(), keys);
            }
            refuse(&feed, 0..KEYS_TO_GATHER);
            assert!(feed.is_due(), "the number of keys is not known yet");
            drop(feed.take());
            for gathered in 1..=3 {
                for turn in 1..GATHER_SECONDS_MAX {
                    refuse(&feed, 0..KEYS_TO_GATHER);
                    assert!(!feed.is_due(), "{gathered}: {turn}");
                }
                refuse(&feed, 0..KEYS_TO_GATHER);
                assert!(feed.is_due(), "{gathered}");
                let taken = feed.take();
                assert_eq!(taken.entries().count(), KEYS_TO_GATHER);
                assert!(taken.entries().all(|entry| entry.count == u64::from(GATHER_SECONDS_MAX)));
            }
            assert!((1..GATHER_SECONDS_MAX).all(|_| !feed.is_due()) && feed.is_due());
            assert_eq!(feed.take().entries().count(), 0, "nothing is refused any more");
        }
    }

    #[test]
    fn a_table_that_fills_up_is_drained_before_it_drops_refusals() {
        let feed = Feed::default();
        refuse(&feed, 0..KEYS_TO_GATHER);
        drop(feed.take());
        refuse(&feed, 0..TABLE_KEYS_MAX / 2);
        assert!(!feed.is_due());
        refuse(&feed, 0..TABLE_KEYS_MAX / 2 + BATCH_REFUSALS);
        assert!(feed.is_due());
        assert_eq!(feed.take().entries().count(), TABLE_KEYS_MAX / 2 + BATCH_REFUSALS);
        let long = |number: usize| feed.refused("user", format!("{number:0>200}").as_bytes());
        (0..TABLE_NAME_BYTES_MAX / 500).for_each(long);
        assert!(!feed.is_due());
        (0..TABLE_NAME_BYTES_MAX / 220).for_each(long);
        assert!(feed.is_due() && feed.dropped() == 0);
    }

    #[test]
    fn a_name_of_any_length_is_accepted() {
        let feed = Feed::default();
        feed.refused(&"c".repeat(999), &[b'k'; 9999]);
        feed.refused("", b"");
        let long = ("c".repeat(NAME_BYTES_MAX), "k".repeat(NAME_BYTES_MAX), 1);
        assert_eq!(left(&feed), [(String::new(), String::new(), 1), long]);
    }
}

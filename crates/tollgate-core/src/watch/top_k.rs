//! Sliding-window counts of refusals for a bounded number of names (space-saving top-k). Names with many refusals
//! cannot be evicted cheaply.
//!
//! Evicting the least recently seen name lets an offender erase its history with a few hundred made-up names.
//! Evicting the smallest count alone is no better: once the table is full, every returning offender is the
//! smallest. As in the space-saving algorithm, a new name therefore starts at the rank of the one that it
//! replaces. Its *count*, however, includes only its own refusals. To evict a name with a count of `w`, all
//! other names must reach `w`, counted after that name was inserted. Hiding `T` refusals costs `(capacity - 1)
//! * T` refusals of other names.

use super::indexed_heap::IndexedHeap;
use super::sliding_count::SlidingCount;
use crate::hash_index::HashIndex;
use crate::time::{Moment, Span};
use alloc::vec::Vec;
use core::hash::BuildHasher;

/// The number of sweeps for expired counts per window. A sweep examines every slot, so it is not done with each count.
const SWEEPS_PER_WINDOW: u64 = 16;
/// The maximum number of names, limited by the index.
const CAPACITY_MAX: usize = 1 << 30;

/// Sliding-window counts by name.
#[derive(Clone, Debug)]
pub(super) struct TopK<S> {
    hasher: S,
    capacity: usize,
    window: Span,
    /// The slots.
    counts: Vec<Counter>,
    /// Slots without a name.
    free: Vec<usize>,
    /// Finds the slot of a name.
    index: HashIndex,
    /// The rank of each name: its count plus `Counter::base`. The name with the lowest rank is evicted.
    ranks: IndexedHeap,
    /// The highest rank that was ever evicted.
    floor: u64,
    /// The number of names that were evicted before they expired.
    pub(super) evicted: u64,
    /// The time of the last sweep.
    expired_at: Moment,
    /// The number of counts that all sweeps have examined.
    #[cfg(test)]
    pub(super) examined: u64,
}

/// One slot. Its memory is reused for the next name.
#[derive(Clone, Debug, Default)]
struct Counter {
    name: Vec<u8>,
    hash: u64,
    /// `floor` at the time of insertion.
    base: u64,
    /// Empty exactly if the slot is free.
    sliding: SlidingCount,
}

impl<S: BuildHasher> TopK<S> {
    pub(super) fn new(capacity: usize, window: Span, hasher: S) -> Self {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        Self {
            hasher,
            capacity,
            window,
            counts: Vec::new(),
            free: Vec::new(),
            index: HashIndex::new(capacity),
            ranks: IndexedHeap::default(),
            floor: 0,
            evicted: 0,
            expired_at: Moment::ZERO,
            #[cfg(test)]
            examined: 0,
        }
    }

    /// An empty table like this one with another window.
    pub(super) fn with_window(&self, window: Span) -> Self
    where
        S: Clone,
    {
        Self { evicted: self.evicted, ..Self::new(self.capacity, window, self.hasher.clone()) }
    }

    /// Adds `count` to `name`. Returns the count of `name` within the window.
    pub(super) fn add(&mut self, name: &[u8], count: u64, now: Moment) -> u64 {
        if now.since(self.expired_at) > Span::from_nanos(self.window.as_nanos() / SWEEPS_PER_WINDOW) {
            self.expire(now);
        }
        let hash = self.hasher.hash_one(name);
        let slot = self.find(hash, name).unwrap_or_else(|| self.insert(hash, name));
        self.counts[slot].sliding.add(count, self.window, now);
        self.rank(slot)
    }

    /// Removes `name`.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if let Some(slot) = self.find(self.hasher.hash_one(name), name) {
            self.remove(slot);
        }
    }

    /// Removes expired counts, and names without counts.
    pub(super) fn expire(&mut self, now: Moment) {
        self.expired_at = now;
        for slot in 0..self.counts.len() {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            if self.counts[slot].sliding.span().is_some() {
                self.expire_at(slot, now);
            }
        }
    }

    /// Every name with its sum and its first and last time, as of the last [`TopK::expire`].
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64, Moment, Moment)> {
        self.counts.iter().filter_map(|entry| {
            let (first, last) = entry.sliding.span()?;
            Some((&*entry.name, entry.sliding.sum(), first, last))
        })
    }

    /// The count of `name` within the window.
    pub(super) fn counted(&mut self, name: &[u8], now: Moment) -> u64 {
        let Some(slot) = self.find(self.hasher.hash_one(name), name) else { return 0 };
        self.expire_at(slot, now)
    }

    /// Every name with its counts and their times, oldest first. The last entry of a name has a count of zero
    /// and the time of the name's newest count.
    pub(super) fn points(&self) -> impl Iterator<Item = (&[u8], Moment, u64)> {
        self.counts.iter().flat_map(|entry| entry.sliding.points().map(|(at, count)| (&*entry.name, at, count)))
    }

    /// Removes the expired counts of a name, and the name if none is left. Returns the rest.
    fn expire_at(&mut self, slot: usize, now: Moment) -> u64 {
        let sliding = &mut self.counts[slot].sliding;
        sliding.expire(self.window, now);
        if sliding.span().is_none() {
            self.remove(slot);
            return 0;
        }
        self.rank(slot)
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<usize> {
        self.index.find(hash, |slot| self.counts[slot].name == name)
    }

    /// Assigns a slot to a new name, and evicts the name with the lowest rank if all are taken.
    fn insert(&mut self, hash: u64, name: &[u8]) -> usize {
        let slot = match self.ranks.first() {
            Some((rank, lowest)) if self.ranks.len() >= self.capacity => {
                self.floor = self.floor.max(rank);
                self.evicted = self.evicted.saturating_add(1);
                self.index.remove(self.counts[lowest].hash, lowest);
                lowest
            }
            _ => self.free.pop().unwrap_or_else(|| {
                self.counts.push(Counter::default());
                self.counts.len() - 1
            }),
        };
        let entry = &mut self.counts[slot];
        entry.name.clear();
        entry.name.extend_from_slice(name);
        (entry.hash, entry.base) = (hash, self.floor);
        entry.sliding.clear();
        self.index.insert(hash, slot);
        slot
    }

    fn remove(&mut self, slot: usize) {
        self.index.remove(self.counts[slot].hash, slot);
        self.counts[slot] = Counter::default();
        self.ranks.remove(slot);
        self.free.push(slot);
    }

    /// Updates the rank of a name, and returns its count.
    fn rank(&mut self, slot: usize) -> u64 {
        let entry = &self.counts[slot];
        let sum = entry.sliding.sum();
        self.ranks.set(slot, entry.base.saturating_add(sum));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::RandomState;

    extern crate std;

    const WINDOW: Span = Span::from_secs(600);

    fn top_k(capacity: usize) -> TopK<RandomState> {
        TopK::new(capacity, WINDOW, RandomState::new())
    }

    #[derive(Default)]
    struct ConstantHash;

    impl core::hash::Hasher for ConstantHash {
        fn write(&mut self, _: &[u8]) {}

        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn names_with_equal_hashes_are_distinct() {
        let mut top_k = TopK::new(4, WINDOW, core::hash::BuildHasherDefault::<ConstantHash>::default());
        assert_eq!((top_k.add(b"a", 1, Moment::ZERO), top_k.add(b"b", 2, Moment::ZERO)), (1, 2));
        top_k.forget(b"a");
        assert_eq!((top_k.counted(b"a", Moment::ZERO), top_k.counted(b"b", Moment::ZERO)), (0, 2));
    }

    proptest! {
        #[test]
        fn hiding_refusals_costs_as_many_refusals_for_every_other_slot(
            capacity in 2usize..8,
            steps in prop::collection::vec((0u8..40, 1u64..30), 1..400),
        ) {
            let mut top_k = top_k(capacity);
            let (mut own, mut others) = (0, 0);
            for (name, count) in steps {
                if name < 8 {
                    own += count;
                    let counted = top_k.add(b"offender", count, Moment::ZERO);
                    prop_assert!(counted <= own);
                    prop_assert!(counted + others / (capacity as u64 - 1) >= own);
                } else {
                    others += count;
                    top_k.add(&[name], count, Moment::ZERO);
                }
                prop_assert!(top_k.counts.len() <= capacity && top_k.ranks.len() == top_k.iter().count());
            }
        }

        #[test]
        fn a_name_is_charged_only_its_own_counts(
            capacity in 1usize..6,
            steps in prop::collection::vec((0u8..12, 1u64..30, 0u64..200), 1..300),
        ) {
            let (mut top_k, mut now) = (top_k(capacity), 0);
            let mut all = Vec::new();
            for (name, count, elapsed) in steps {
                now += elapsed * 1_000_000_000;
                all.push((name, now, count));
                let counted = top_k.add(&[name], count, Moment::from_nanos(now));
                let within = |(who, at, _): &&(u8, u64, u64)| *who == name && now - at <= WINDOW.as_nanos();
                prop_assert!(counted <= all.iter().filter(within).map(|(_, _, count)| count).sum::<u64>());
            }
        }
    }

    #[test]
    fn expired_names_free_slots_without_eviction() {
        let mut top_k = top_k(2);
        top_k.add(b"a", 1000, Moment::ZERO);
        top_k.add(b"b", 1000, Moment::ZERO);
        let later = Moment::ZERO + WINDOW + Span::from_nanos(1);
        assert_eq!(top_k.add(b"c", 1, later), 1);
        assert_eq!(top_k.evicted, 0);
        assert_eq!(top_k.iter().count(), 1);
    }

    #[test]
    fn an_expired_name_frees_its_slot_on_any_access() {
        let mut top_k = top_k(2);
        let later = Moment::ZERO + WINDOW + Span::from_nanos(1);
        top_k.add(b"a", 5, Moment::ZERO);
        top_k.add(b"b", 0, Moment::ZERO);
        assert_eq!((top_k.ranks.len(), top_k.counted(b"a", later), top_k.ranks.len()), (2, 0, 1));
        top_k.expire(later);
        assert_eq!((top_k.ranks.len(), top_k.iter().count(), top_k.free.len()), (0, 0, 2));
        top_k.add(b"c", 1, later);
        top_k.add(b"d", 1, later);
        assert_eq!((top_k.evicted, top_k.counts.len()), (0, 2));
    }
}

//! A bounded map from domain and identifier to a value: the running counts of a gate, or the accounts of a master.
//!
//! Clients choose identifiers, so a map that grows with them could be flooded. This one has a fixed capacity.
//! When it is full, it examines a few entries in turn and evicts the one that is clear soonest. An entry
//! without debt is evicted without loss, and an offender is never evicted while one of the examined entries
//! has less debt.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use crate::hash_index::HashIndex;
use crate::time::Moment;

/// Identifies an entry. It becomes invalid when the entry is evicted, even if its slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryId {
    index: u32,
    /// The serial number of the entry, which distinguishes it from earlier entries in the same slot.
    number: u32,
}

/// A value that a [`BoundedMap`] can hold.
pub(super) trait Evictable {
    /// The time from which the value can be dropped without loss.
    fn clear_at(&self) -> Moment;
}

/// The map. `S` must be a keyed hasher, because clients choose identifiers.
pub(super) struct BoundedMap<V, S> {
    hasher: S,
    /// Finds the slot of an entry.
    index: HashIndex,
    /// The slots; `None` for a free one.
    entries: Vec<Option<Entry<V>>>,
    /// The indices of the free slots.
    free: Vec<u32>,
    capacity: usize,
    /// The entry at which the next search for a victim starts.
    next_victim: usize,
    /// The number of insertions so far.
    insertions: u32,
    /// The number of values that were evicted with debt.
    pub(super) evicted_with_debt: u64,
}

pub(super) struct Entry<V> {
    hash: u64,
    /// [`EntryId::number`].
    number: u32,
    /// The index of the domain in the settings.
    pub(super) domain: u16,
    pub(super) identifier: Box<[u8]>,
    pub(super) value: V,
}

/// The number of entries examined to find a victim.
const VICTIMS_EXAMINED: usize = 16;

impl<V: Evictable, S: BuildHasher> BoundedMap<V, S> {
    /// A map of at most `capacity` values.
    pub(super) fn new(capacity: usize, hasher: S) -> Self {
        let capacity = capacity.clamp(1, (u32::MAX / 4) as usize);
        let index = HashIndex::new(capacity);
        Self {
            hasher,
            index,
            entries: Vec::new(),
            free: Vec::new(),
            capacity,
            next_victim: 0,
            insertions: 0,
            evicted_with_debt: 0,
        }
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether a queue of `queue` ids, each at most once, consists mostly of evicted entries, so that they should be
    /// removed from it.
    pub(super) fn is_overgrown(&self, queue: usize) -> bool {
        queue > 2 * self.capacity
    }

    /// The number of slots in use so far: the bound of [`at`](Self::at).
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// The entry in the slot with this index.
    pub(super) fn at(&self, index: usize) -> Option<(EntryId, &Entry<V>)> {
        let entry = self.entries.get(index)?.as_ref()?;
        Some((EntryId { index: index as u32, number: entry.number }, entry))
    }

    pub(super) fn entry(&self, id: EntryId) -> Option<&Entry<V>> {
        self.entries.get(id.index as usize)?.as_ref().filter(|entry| entry.number == id.number)
    }

    pub(super) fn value_mut(&mut self, id: EntryId) -> Option<&mut V> {
        let entry = self.entries.get_mut(id.index as usize)?.as_mut();
        entry.filter(|entry| entry.number == id.number).map(|entry| &mut entry.value)
    }

    pub(super) fn find(&self, domain: u16, identifier: &[u8]) -> Option<EntryId> {
        self.search(self.hash(domain, identifier), domain, identifier)
    }

    /// Finds or inserts a value. Also returns the value that was evicted for it.
    pub(super) fn find_or_insert(
        &mut self,
        domain: u16,
        identifier: &[u8],
        now: Moment,
        fresh: impl FnOnce() -> V,
    ) -> (EntryId, Option<V>) {
        let hash = self.hash(domain, identifier);
        if let Some(id) = self.search(hash, domain, identifier) {
            return (id, None);
        }
        let evicted = if self.len() < self.capacity { None } else { self.evict_one(now) };
        self.insertions = self.insertions.wrapping_add(1);
        let number = self.insertions;
        let entry = Some(Entry { hash, number, domain, identifier: identifier.into(), value: fresh() });
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index as usize
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.index.insert(hash, index);
        (EntryId { index: index as u32, number }, evicted)
    }

    /// Removes the value if that loses nothing.
    pub(super) fn drop_if_clear(&mut self, id: EntryId, now: Moment) {
        if self.entry(id).is_some_and(|entry| entry.value.clear_at() <= now) {
            self.remove(id.index as usize);
        }
    }

    fn hash(&self, domain: u16, identifier: &[u8]) -> u64 {
        self.hasher.hash_one((domain, identifier))
    }

    fn search(&self, hash: u64, domain: u16, identifier: &[u8]) -> Option<EntryId> {
        let index = self.index.find(hash, |index| {
            let entry = self.entries[index].as_ref();
            entry.is_some_and(|entry| entry.domain == domain && *entry.identifier == *identifier)
        })?;
        self.at(index).map(|(id, _)| id)
    }

    /// Examines a few entries in turn and evicts the one that is clear soonest.
    fn evict_one(&mut self, now: Moment) -> Option<V> {
        let mut best: Option<(Moment, usize)> = None;
        for _ in 0..VICTIMS_EXAMINED.min(self.entries.len()) {
            self.next_victim = (self.next_victim + 1) % self.entries.len();
            let Some(entry) = &self.entries[self.next_victim] else { continue };
            let clear_at = entry.value.clear_at();
            if best.is_none_or(|(least, _)| clear_at < least) {
                best = Some((clear_at, self.next_victim));
            }
            if clear_at <= now {
                break;
            }
        }
        let (clear_at, index) = best?;
        self.evicted_with_debt += u64::from(clear_at > now);
        self.remove(index)
    }

    fn remove(&mut self, index: usize) -> Option<V> {
        let entry = self.entries[index].take()?;
        self.free.push(index as u32);
        self.index.remove(entry.hash, index);
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::hash::{BuildHasherDefault, Hasher};
    use proptest::prelude::*;

    /// A hash that collides a lot.
    #[derive(Default)]
    struct Poor(u64);

    impl Hasher for Poor {
        fn write(&mut self, bytes: &[u8]) {
            bytes.iter().for_each(|byte| self.0 = self.0.wrapping_add(u64::from(*byte)) % 5);
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }

    impl Evictable for u64 {
        fn clear_at(&self) -> Moment {
            Moment::from_nanos(*self)
        }
    }

    fn map(capacity: usize) -> BoundedMap<u64, BuildHasherDefault<Poor>> {
        BoundedMap::new(capacity, BuildHasherDefault::default())
    }

    #[test]
    fn the_largest_debt_survives_a_flood_of_new_identifiers() {
        let mut map = map(8);
        let now = Moment::from_nanos(10);
        map.find_or_insert(0, b"offender", now, || 1000);
        for stranger in 0_u32..1000 {
            map.find_or_insert(0, &stranger.to_be_bytes(), now, || 20);
            assert!(map.find(0, b"offender").is_some() && map.len() <= 8);
        }
        assert_eq!(map.evicted_with_debt, 993);
    }

    proptest! {
        #[test]
        fn a_bounded_map_below_capacity_is_a_map(steps in prop::collection::vec((any::<bool>(), 0_u16..2, 0_u8..20), 0..200)) {
            let mut map = map(64);
            let mut model = BTreeMap::new();
            for (insert, domain, name) in steps {
                if insert {
                    map.find_or_insert(domain, &[name], Moment::ZERO, || 0);
                    model.insert((domain, name), ());
                } else if let Some(id) = map.find(domain, &[name]) {
                    map.drop_if_clear(id, Moment::ZERO);
                    model.remove(&(domain, name));
                }
                prop_assert_eq!(map.len(), model.len());
                for domain in 0..2 {
                    for name in 0..20 {
                        let id = map.find(domain, &[name]);
                        prop_assert_eq!(id.is_some(), model.contains_key(&(domain, name)));
                        let kept = id.and_then(|id| map.entry(id));
                        prop_assert!(kept.is_none_or(|entry| *entry.identifier == [name] && entry.domain == domain));
                    }
                }
            }
        }
    }
}

//! Who is known: a bounded store of values by domain and identifier.
//!
//! Identifiers are chosen by strangers, so a store that grows with them is a gift to whoever sprays. This one has a fixed number of
//! places. When it is full it looks at a few of them, in turn, and gives up the one that is in the best standing: nothing is
//! lost if that one owes nothing, and an offender is never the one to go while somebody better is in sight.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use crate::time::Moment;

/// Where a value is kept. When the value is given up its place leads nowhere, even if somebody else has moved in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    index: u32,
    /// Which of all that ever moved in.
    number: u32,
}

/// What can be kept in a [`Ledger`].
pub(super) trait Standing {
    /// From this moment on nothing is lost by giving it up.
    fn clear_at(&self) -> Moment;
}

pub(super) struct Ledger<V, S> {
    hasher: S,
    /// Open addressing: 0, or the upper half of a hash and one more than a place.
    index: Box<[u64]>,
    entries: Vec<Option<Entry<V>>>,
    free: Vec<u32>,
    capacity: usize,
    /// Where the next search for somebody to give up begins.
    hand: usize,
    /// How many ever moved in.
    arrivals: u32,
    forgotten: u64,
}

pub(super) struct Entry<V> {
    hash: u64,
    number: u32,
    pub(super) domain: u16,
    pub(super) identifier: Box<[u8]>,
    pub(super) value: V,
}

/// How many places are looked at to find one to give up.
const SAMPLE: usize = 16;
const PLACE_MASK: u64 = u32::MAX as u64;

impl<V: Standing, S: BuildHasher> Ledger<V, S> {
    /// A store of at most `capacity` values.
    pub(super) fn new(capacity: usize, hasher: S) -> Self {
        let capacity = capacity.clamp(1, (u32::MAX / 4) as usize);
        let index = vec![0; (capacity * 2).next_power_of_two()].into_boxed_slice();
        Self { hasher, index, entries: Vec::new(), free: Vec::new(), capacity, hand: 0, arrivals: 0, forgotten: 0 }
    }

    /// How many values are kept.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// How many values were given up although something was owed.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Whether a queue of so many places holds mostly ones that lead nowhere.
    pub(super) fn is_overgrown(&self, queue: usize) -> bool {
        queue > 2 * self.capacity
    }

    /// How many values have been kept at once: the bound of [`at`](Self::at).
    pub(super) fn places(&self) -> usize {
        self.entries.len()
    }

    /// What is kept in the place with this index.
    pub(super) fn at(&self, index: usize) -> Option<(Place, &Entry<V>)> {
        let entry = self.entries.get(index)?.as_ref()?;
        Some((Place { index: index as u32, number: entry.number }, entry))
    }

    pub(super) fn entry(&self, place: Place) -> Option<&Entry<V>> {
        self.entries.get(place.index as usize)?.as_ref().filter(|entry| entry.number == place.number)
    }

    pub(super) fn value_mut(&mut self, place: Place) -> Option<&mut V> {
        let entry = self.entries.get_mut(place.index as usize)?.as_mut();
        entry.filter(|entry| entry.number == place.number).map(|entry| &mut entry.value)
    }

    pub(super) fn find(&self, domain: u16, identifier: &[u8]) -> Option<Place> {
        let index = self.search(self.hash(domain, identifier), domain, identifier).ok()?;
        self.at(index).map(|(place, _)| place)
    }

    /// The place of a value, which is made by `fresh` if there is none yet; and the value that was given up for it.
    pub(super) fn find_or_insert(
        &mut self,
        domain: u16,
        identifier: &[u8],
        now: Moment,
        fresh: impl FnOnce() -> V,
    ) -> (Place, Option<V>) {
        let hash = self.hash(domain, identifier);
        let (slot, given_up) = match self.search(hash, domain, identifier) {
            Ok(index) => return (self.place(index), None),
            Err(slot) if self.len() < self.capacity => (slot, None),
            Err(_) => {
                let given_up = self.give_up_one(now);
                (self.search(hash, domain, identifier).err().unwrap_or_default(), given_up)
            }
        };
        self.arrivals = self.arrivals.wrapping_add(1);
        let number = self.arrivals;
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
        self.index[slot] = hash & !PLACE_MASK | (index as u64 + 1);
        (self.place(index), given_up)
    }

    /// Gives up the value at `place` if nothing is lost by it.
    pub(super) fn drop_if_clear(&mut self, place: Place, now: Moment) {
        if self.entry(place).is_some_and(|entry| entry.value.clear_at() <= now) {
            self.remove(place.index as usize);
        }
    }

    fn place(&self, index: usize) -> Place {
        let number = self.entries[index].as_ref().map_or(0, |entry| entry.number);
        Place { index: index as u32, number }
    }

    fn hash(&self, domain: u16, identifier: &[u8]) -> u64 {
        self.hasher.hash_one((domain, identifier))
    }

    /// Which entry it is, or the free slot of the index where it would be.
    fn search(&self, hash: u64, domain: u16, identifier: &[u8]) -> Result<usize, usize> {
        let mut slot = self.home(hash);
        loop {
            let found = self.index[slot];
            if found == 0 {
                return Err(slot);
            }
            if (found ^ hash) & !PLACE_MASK == 0 {
                let index = (found & PLACE_MASK) as usize - 1;
                let entry = self.entries[index].as_ref();
                if entry.is_some_and(|entry| entry.domain == domain && *entry.identifier == *identifier) {
                    return Ok(index);
                }
            }
            slot = self.after(slot);
        }
    }

    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.index.len() - 1)
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.index.len() - 1)
    }

    /// Looks at a few places in turn, and gives up the best standing of them.
    fn give_up_one(&mut self, now: Moment) -> Option<V> {
        let mut best: Option<(Moment, usize)> = None;
        for _ in 0..SAMPLE.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            let Some(entry) = &self.entries[self.hand] else { continue };
            let clear_at = entry.value.clear_at();
            if best.is_none_or(|(least, _)| clear_at < least) {
                best = Some((clear_at, self.hand));
            }
            if clear_at <= now {
                break;
            }
        }
        let (clear_at, index) = best?;
        self.forgotten += u64::from(clear_at > now);
        self.remove(index)
    }

    fn remove(&mut self, index: usize) -> Option<V> {
        let entry = self.entries[index].take()?;
        self.free.push(index as u32);
        let mut hole = self.home(entry.hash);
        while self.index[hole] & PLACE_MASK != index as u64 + 1 {
            hole = self.after(hole);
        }
        // Whoever stands behind the hole and does not belong behind it moves up, so that every search ends at the first gap.
        let mut slot = self.after(hole);
        while self.index[slot] != 0 {
            let occupant = (self.index[slot] & PLACE_MASK) as usize - 1;
            let home = self.entries[occupant].as_ref().map_or(slot, |entry| self.home(entry.hash));
            let (from_home, from_hole) = (slot.wrapping_sub(home), slot.wrapping_sub(hole));
            let mask = self.index.len() - 1;
            if from_home & mask >= from_hole & mask {
                self.index[hole] = self.index[slot];
                hole = slot;
            }
            slot = self.after(slot);
        }
        self.index[hole] = 0;
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

    impl Standing for u64 {
        fn clear_at(&self) -> Moment {
            Moment::from_nanos(*self)
        }
    }

    fn ledger(capacity: usize) -> Ledger<u64, BuildHasherDefault<Poor>> {
        Ledger::new(capacity, BuildHasherDefault::default())
    }

    #[test]
    fn who_owes_most_stays_when_strangers_are_sprayed() {
        let mut ledger = ledger(8);
        let now = Moment::from_nanos(10);
        ledger.find_or_insert(0, b"offender", now, || 1000);
        for stranger in 0_u32..1000 {
            ledger.find_or_insert(0, &stranger.to_be_bytes(), now, || 20);
            assert!(ledger.find(0, b"offender").is_some() && ledger.len() <= 8);
        }
        assert_eq!(ledger.forgotten(), 993);
    }

    proptest! {
        #[test]
        fn a_ledger_with_room_is_a_map(steps in prop::collection::vec((any::<bool>(), 0_u16..2, 0_u8..20), 0..200)) {
            let mut ledger = ledger(64);
            let mut model = BTreeMap::new();
            for (insert, domain, name) in steps {
                if insert {
                    ledger.find_or_insert(domain, &[name], Moment::ZERO, || 0);
                    model.insert((domain, name), ());
                } else if let Some(place) = ledger.find(domain, &[name]) {
                    ledger.drop_if_clear(place, Moment::ZERO);
                    model.remove(&(domain, name));
                }
                prop_assert_eq!(ledger.len(), model.len());
                for domain in 0..2 {
                    for name in 0..20 {
                        let place = ledger.find(domain, &[name]);
                        prop_assert_eq!(place.is_some(), model.contains_key(&(domain, name)));
                        let kept = place.and_then(|place| ledger.entry(place));
                        prop_assert!(kept.is_none_or(|entry| *entry.identifier == [name] && entry.domain == domain));
                    }
                }
            }
        }
    }
}

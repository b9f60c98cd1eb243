//! Which place a name has, found by its hash.
//!
//! Names are chosen by strangers, and a tree of them is walked through memory that is never at hand: that was half of what a
//! report cost. Here one look is usually enough. The hash is made by whoever has randomness, so nobody can choose names that meet.

use alloc::boxed::Box;
use alloc::vec;

/// Open addressing, at most half full.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// 0, or the upper half of a hash and one more than a place.
    slots: Box<[u64]>,
}

const PLACE_MASK: u64 = u32::MAX as u64;

impl Names {
    /// Room for the names of so many places.
    pub(super) fn new(places: usize) -> Self {
        Self { slots: vec![0; (places * 2).next_power_of_two()].into_boxed_slice() }
    }

    /// The place of the name that has this hash and that `is` knows.
    pub(super) fn find(&self, hash: u64, is: impl Fn(usize) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
        while self.slots[at] != 0 {
            let place = place(self.slots[at]);
            if (self.slots[at] ^ hash) & !PLACE_MASK == 0 && is(place) {
                return Some(place);
            }
            at = self.after(at);
        }
        None
    }

    /// Writes down where a name is that was not there.
    pub(super) fn insert(&mut self, hash: u64, place: usize) {
        let mut at = self.home(hash);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = hash & !PLACE_MASK | (place as u64 + 1);
    }

    /// Takes a name out that is there.
    pub(super) fn remove(&mut self, hash: u64, place: usize) {
        let mut hole = self.home(hash);
        while self.slots[hole] & PLACE_MASK != place as u64 + 1 {
            hole = self.after(hole);
        }
        // Whoever stands behind the hole and does not belong behind it moves up, so that every search ends at the first gap.
        let (mut at, mask) = (self.after(hole), self.slots.len() - 1);
        while self.slots[at] != 0 {
            let home = self.home(self.slots[at]);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = 0;
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }
}

fn place(slot: u64) -> usize {
    (slot & PLACE_MASK) as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    const PLACES: usize = 24;

    proptest! {
        #[test]
        fn it_is_a_map_even_if_many_hashes_meet(
            steps in prop::collection::vec((0usize..PLACES, 0u64..6), 1..400),
        ) {
            let (mut names, mut model) = (Names::new(PLACES), BTreeMap::new());
            for (place, hash) in steps {
                let hash = hash << 32;
                match model.remove(&place) {
                    Some(known) => names.remove(known, place),
                    None => {
                        names.insert(hash, place);
                        model.insert(place, hash);
                    }
                }
                for place in 0..PLACES {
                    let expect = model.get(&place).map(|_| place);
                    let hash = model.get(&place).copied().unwrap_or(hash);
                    prop_assert_eq!(names.find(hash, |found| found == place), expect);
                }
            }
        }
    }
}

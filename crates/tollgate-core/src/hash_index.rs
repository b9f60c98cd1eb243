//! A hash index from names to slot numbers, by open addressing with at most half of the index in use.
//!
//! The bounded tables of the fleet and of the watch store their entries in slots, and find the slot of a name, which a
//! client chose, by this index. A search tree took half of the time of adding a count, because its nodes are rarely in
//! the CPU cache. Here one probe is usually enough. The caller's hasher must be keyed with a secret, so that no client
//! can choose names that collide.

use alloc::boxed::Box;
use alloc::vec;

/// Finds slot numbers by hash. The caller stores the names and compares them.
#[derive(Clone, Debug)]
pub(crate) struct HashIndex {
    /// 0 if empty; otherwise the upper 32 bits of the hash, and in the lower 32 bits the slot number plus one.
    cells: Box<[u64]>,
}

/// The bits of a cell that hold the slot number plus one.
const SLOT_MASK: u64 = u32::MAX as u64;

impl HashIndex {
    /// An index for at most `slots` names.
    pub(crate) fn new(slots: usize) -> Self {
        Self { cells: vec![0; (slots * 2).next_power_of_two()].into_boxed_slice() }
    }

    /// The slot of the name that has this hash and for which `is_same` holds.
    pub(crate) fn find(&self, hash: u64, is_same: impl Fn(usize) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
        while self.cells[at] != 0 {
            let slot = (self.cells[at] & SLOT_MASK) as usize - 1;
            if (self.cells[at] ^ hash) & !SLOT_MASK == 0 && is_same(slot) {
                return Some(slot);
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a name that is not in the index.
    pub(crate) fn insert(&mut self, hash: u64, slot: usize) {
        let mut at = self.home(hash);
        while self.cells[at] != 0 {
            at = self.after(at);
        }
        self.cells[at] = hash & !SLOT_MASK | (slot as u64 + 1);
    }

    /// Removes a name that is in the index.
    pub(crate) fn remove(&mut self, hash: u64, slot: usize) {
        let mut hole = self.home(hash);
        while self.cells[hole] & SLOT_MASK != slot as u64 + 1 {
            hole = self.after(hole);
        }
        // Move later cells of the same cluster into the hole, so that no probe ends before its name.
        let (mut at, mask) = (self.after(hole), self.cells.len() - 1);
        while self.cells[at] != 0 {
            let home = self.home(self.cells[at]);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.cells[hole] = 0;
    }

    /// The cell at which the search for a hash begins.
    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.cells.len() - 1)
    }

    /// The cell after `at`, in a ring.
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    const SLOTS: usize = 24;

    proptest! {
        #[test]
        fn an_index_is_a_map_even_if_many_hashes_collide(
            steps in prop::collection::vec((0usize..SLOTS, 0u64..6), 1..400),
        ) {
            let (mut index, mut model) = (HashIndex::new(SLOTS), BTreeMap::new());
            for (slot, hash) in steps {
                let hash = hash << 32;
                match model.remove(&slot) {
                    Some(known) => index.remove(known, slot),
                    None => {
                        index.insert(hash, slot);
                        model.insert(slot, hash);
                    }
                }
                for slot in 0..SLOTS {
                    let expect = model.get(&slot).map(|_| slot);
                    let hash = model.get(&slot).copied().unwrap_or(hash);
                    prop_assert_eq!(index.find(hash, |found| found == slot), expect);
                }
            }
        }
    }
}

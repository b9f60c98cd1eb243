//! A min-heap of slot numbers by rank that tracks the position of each slot, so that its rank can be changed.
//!
//! [`TopK`](super::top_k::TopK) finds the name to evict with it. A new name replaces the one with the lowest rank and
//! sinks from the top, once. A search tree would need four searches for that.

use alloc::vec::Vec;

/// A heap of slots; the lowest rank is available in constant time. Of equal ranks, the lower slot is first.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexedHeap {
    /// Ranks and slots, in the order of a binary heap.
    heap: Vec<(u64, u32)>,
    /// The position of each slot in the heap; `None` for a slot without a rank.
    at: Vec<Option<u32>>,
}

impl IndexedHeap {
    /// The number of slots with a rank.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The lowest rank and its slot.
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.heap.first().map(|&(rank, slot)| (rank, slot as usize))
    }

    /// Sets the rank of a slot.
    pub(super) fn set(&mut self, slot: usize, rank: u64) {
        if self.at.len() <= slot {
            self.at.resize(slot + 1, None);
        }
        let ranked = (rank, slot as u32);
        let at = self.at[slot].map_or(self.heap.len(), |at| at as usize);
        match self.heap.get(at) {
            Some(&same) if same == ranked => return,
            Some(_) => {}
            None => self.heap.push(ranked),
        }
        self.settle(at, ranked);
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, slot: usize) {
        let Some(at) = self.at.get_mut(slot).and_then(Option::take) else { return };
        let Some(last) = self.heap.pop() else { return };
        if (at as usize) < self.heap.len() {
            self.settle(at as usize, last);
        }
    }

    /// Moves `ranked` to its position, starting from the gap at `at`.
    fn settle(&mut self, mut at: usize, ranked: (u64, u32)) {
        while at > 0 && ranked < self.heap[(at - 1) / 2] {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(&first) = self.heap.get(left) else { break };
            let lower = match self.heap.get(right) {
                Some(&second) if second < first => right,
                _ => left,
            };
            if ranked < self.heap[lower] {
                break;
            }
            self.put(at, self.heap[lower]);
            at = lower;
        }
        self.put(at, ranked);
    }

    fn put(&mut self, at: usize, ranked: (u64, u32)) {
        self.heap[at] = ranked;
        self.at[ranked.1 as usize] = Some(at as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lowest_rank_is_first_after_any_changes(steps in prop::collection::vec((0usize..40, 0u64..30), 1..400)) {
            let (mut indexed_heap, mut model) = (IndexedHeap::default(), BTreeMap::new());
            for (slot, rank) in steps {
                if rank == 0 {
                    indexed_heap.remove(slot);
                    model.remove(&slot);
                } else {
                    indexed_heap.set(slot, rank);
                    model.insert(slot, rank);
                }
                let in_order: BTreeSet<_> = model.iter().map(|(&slot, &rank)| (rank, slot)).collect();
                prop_assert_eq!(indexed_heap.first(), in_order.first().copied());
                prop_assert_eq!(indexed_heap.len(), model.len());
            }
        }
    }
}

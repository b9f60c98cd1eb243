//! Which place has the lowest rank: a heap that knows where in it each place is.
//!
//! A newcomer takes the place of the lowest and goes down from the top, once; a tree would be searched four times for that.

use alloc::vec::Vec;

/// Ranks of places, the lowest at hand. Of equal ones the lowest place counts as lower.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks {
    heap: Vec<(u64, u32)>,
    /// Where in the heap a place is.
    at: Vec<Option<u32>>,
}

impl Ranks {
    /// How many places have a rank.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The lowest rank and whose it is.
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.heap.first().map(|&(rank, place)| (rank, place as usize))
    }

    /// Gives a place this rank, whether or not it had one.
    pub(super) fn set(&mut self, place: usize, rank: u64) {
        if self.at.len() <= place {
            self.at.resize(place + 1, None);
        }
        let ranked = (rank, place as u32);
        let at = self.at[place].map_or(self.heap.len(), |at| at as usize);
        match self.heap.get(at) {
            Some(&same) if same == ranked => return,
            Some(_) => {}
            None => self.heap.push(ranked),
        }
        self.settle(at, ranked);
    }

    /// Takes its rank from a place.
    pub(super) fn remove(&mut self, place: usize) {
        let Some(at) = self.at.get_mut(place).and_then(Option::take) else { return };
        let Some(last) = self.heap.pop() else { return };
        if (at as usize) < self.heap.len() {
            self.settle(at as usize, last);
        }
    }

    /// Puts `ranked` where it belongs, from the gap at `at` on.
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
        fn the_lowest_is_first_whatever_came_and_went(steps in prop::collection::vec((0usize..40, 0u64..30), 1..400)) {
            let (mut ranks, mut model) = (Ranks::default(), BTreeMap::new());
            for (place, rank) in steps {
                if rank == 0 {
                    ranks.remove(place);
                    model.remove(&place);
                } else {
                    ranks.set(place, rank);
                    model.insert(place, rank);
                }
                let in_order: BTreeSet<_> = model.iter().map(|(&place, &rank)| (rank, place)).collect();
                prop_assert_eq!(ranks.first(), in_order.first().copied());
                prop_assert_eq!(ranks.len(), model.len());
            }
        }
    }
}

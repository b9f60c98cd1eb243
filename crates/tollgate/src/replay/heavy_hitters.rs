//! The heaviest keys of a recording (by cost or by number), in fixed memory.
//!
//! A count per key grows with the number of keys, and a sample misses bursts. This is the Space-Saving algorithm: a
//! new key without a free slot replaces the lightest one and inherits its weight as a possible error. Every key that
//! weighs more than the error is in the list, and no weight is underestimated. To find the lightest quickly, keys are
//! distributed by hash over sets of eight slots. The error is then at most the weight of the set divided by eight.

use super::key_name::KeyName;

/// Slots in a set. Their hashes fill one cache line.
const WAYS: usize = 8;

/// The heaviest keys, with facts about each, such as its number of requests.
pub(super) struct HeavyHitters<Fact> {
    /// The hashes of the keys in each set; 0 in a free slot.
    hashes: Vec<[u64; WAYS]>,
    /// The weights of these keys. A new key begins with the weight of the key that it replaced.
    weights: Vec<[u64; WAYS]>,
    /// The names and facts of these keys, set after set.
    slots: Vec<HeavyHitter<Fact>>,
}

/// One key in the list.
pub(super) struct HeavyHitter<Fact> {
    /// The name of the key.
    pub(super) name: KeyName,
    /// The part of the weight that may belong to earlier keys of this slot.
    pub(super) error: u64,
    /// The facts since the key was added.
    pub(super) fact: Fact,
}

impl<Fact: Default> HeavyHitters<Fact> {
    /// A list with room for `sets` x 8 keys.
    pub(super) fn new(sets: usize) -> Self {
        let slot = || HeavyHitter { name: KeyName::default(), error: 0, fact: Fact::default() };
        Self {
            hashes: vec![[0; WAYS]; sets],
            weights: vec![[0; WAYS]; sets],
            slots: std::iter::repeat_with(slot).take(sets * WAYS).collect(),
        }
    }

    /// Adds `weight` to the key with this hash and returns its facts. `name` writes the name of a new key.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, weight: u64, name: impl FnOnce(&mut KeyName)) -> &mut Fact {
        let hash = hash | 1; // 0 is a free slot.
        let set = ((u128::from(hash) * self.hashes.len() as u128) >> 64) as usize;
        let way = match self.hashes[set].iter().position(|known| *known == hash) {
            Some(way) => way,
            None => self.replace(set, hash, name),
        };
        self.weights[set][way] = self.weights[set][way].saturating_add(weight);
        &mut self.slots[set * WAYS + way].fact
    }

    /// Gives the lightest slot of a set to a new key. In a log with many keys nearly every line does this, so the name
    /// is written into the memory of the old one.
    fn replace(&mut self, set: usize, hash: u64, name: impl FnOnce(&mut KeyName)) -> usize {
        let weights = &self.weights[set];
        let way = (0..WAYS).min_by_key(|way| weights[*way]).unwrap_or_default();
        self.hashes[set][way] = hash;
        let slot = &mut self.slots[set * WAYS + way];
        name(&mut slot.name);
        (slot.error, slot.fact) = (weights[way], Fact::default());
        way
    }

    /// All keys with their minimum weight, which excludes the possible error, the heaviest first.
    pub(super) fn heaviest(&self) -> Vec<(u64, &HeavyHitter<Fact>)> {
        let weights = self.weights.iter().flatten();
        let mut taken: Vec<_> = weights
            .zip(&self.slots)
            .zip(self.hashes.iter().flatten())
            .filter(|(_, hash)| **hash != 0)
            .map(|((weight, slot), _)| (weight - slot.error, slot))
            .collect();
        taken.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.to_text().cmp(&b.1.name.to_text())));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn name(number: u64) -> KeyName {
        KeyName::of_text(&number.to_le_bytes())
    }

    fn add<Fact: Default>(top: &mut HeavyHitters<Fact>, number: u64, weight: u64) -> &mut Fact {
        top.add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), weight, |place| *place = name(number))
    }

    #[test]
    fn a_million_light_names_do_not_push_out_a_heavy_one() {
        let mut top = HeavyHitters::<u64>::new(64);
        for number in 0..1_000_000 {
            add(&mut top, number + 10, 1);
            if number % 100 == 0 {
                *add(&mut top, number % 7, 100) += 1;
            }
        }
        let heaviest = top.heaviest();
        let mut found: Vec<_> = heaviest[..7].iter().map(|(_, place)| place.name.to_text()).collect();
        found.sort();
        let mut expect: Vec<_> = (0..7).map(|number| name(number).to_text()).collect();
        expect.sort();
        assert_eq!(found, expect);
    }

    proptest! {
        #[test]
        fn no_minimum_weight_is_above_the_true_weight_and_the_error_is_bounded(
            adds in prop::collection::vec((0u64..60, 1u64..50), 0..600),
        ) {
            let mut top = HeavyHitters::<u64>::new(2);
            let mut truth = HashMap::new();
            for (number, weight) in &adds {
                *add(&mut top, *number, *weight) += weight;
                *truth.entry(name(*number).to_text()).or_insert(0) += weight;
            }
            let total: u64 = adds.iter().map(|(_, weight)| weight).sum();
            for (least, place) in top.heaviest() {
                let true_weight = truth[&place.name.to_text()];
                prop_assert!(least <= true_weight && true_weight <= least + place.error);
                prop_assert!(place.fact <= true_weight);
                prop_assert!(place.error <= total / WAYS as u64);
            }
            let listed: Vec<_> = top.heaviest().iter().map(|(_, place)| place.name.to_text()).collect();
            for (who, weight) in truth {
                prop_assert!(weight <= total / WAYS as u64 || listed.contains(&who));
            }
        }
    }
}

//! Which identifier a hash stands for, for as long as its requests are at work: a ticket keeps the hash and not the name.

use std::collections::HashMap;

use crate::hash::KeyHash;

/// The names of the hashes that were seen last. Two generations: when the younger is full the older goes.
#[derive(Debug, Default)]
pub(super) struct BoundNames {
    young: HashMap<(u16, u64), Box<[u8]>>,
    old: HashMap<(u16, u64), Box<[u8]>>,
}

const GENERATION: usize = 65_536;

impl BoundNames {
    pub(super) fn note(&mut self, rule: u16, hash: KeyHash, identifier: &[u8]) {
        let key = (rule, hash.0);
        if self.young.contains_key(&key) {
            return;
        }
        if self.young.len() >= GENERATION {
            self.old = core::mem::take(&mut self.young);
        }
        let name = self.old.remove(&key).unwrap_or_else(|| identifier.into());
        self.young.insert(key, name);
    }

    pub(super) fn find(&self, rule: u16, hash: KeyHash) -> Option<&[u8]> {
        let key = (rule, hash.0);
        self.young.get(&key).or_else(|| self.old.get(&key)).map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_names_are_known_and_memory_is_bounded() {
        let mut names = BoundNames::default();
        for hash in 0..10 * GENERATION as u64 {
            names.note(0, KeyHash(hash), &hash.to_be_bytes());
            assert_eq!(names.find(0, KeyHash(hash)), Some(&hash.to_be_bytes()[..]));
        }
        assert!(names.young.len() + names.old.len() <= 2 * GENERATION);
        assert!(names.find(0, KeyHash(9 * GENERATION as u64)).is_some());
        assert!(names.find(0, KeyHash(1)).is_none() && names.find(1, KeyHash(9 * GENERATION as u64)).is_none());
    }
}

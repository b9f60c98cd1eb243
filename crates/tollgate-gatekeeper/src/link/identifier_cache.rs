//! Maps the hashes of keys to their identifiers while requests are in flight. A ticket contains only hashes, but the
//! report that a request has ended or was refunded needs the identifier.

use std::collections::HashMap;

use crate::hash::KeyHash;

/// The identifiers of recent hashes, by the index of the rule and the hash. There are two generations: when the younger
/// one is full, the older one is dropped.
#[derive(Debug, Default)]
pub(super) struct IdentifierCache {
    young: HashMap<(u16, u64), Box<[u8]>>,
    old: HashMap<(u16, u64), Box<[u8]>>,
}

/// The maximum number of identifiers per generation.
const GENERATION_MAX: usize = 65_536;

impl IdentifierCache {
    pub(super) fn note(&mut self, rule: u16, hash: KeyHash, identifier: &[u8]) {
        let key = (rule, hash.0);
        if self.young.contains_key(&key) {
            return;
        }
        if self.young.len() >= GENERATION_MAX {
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
    fn recent_identifiers_are_found_and_memory_is_bounded() {
        let mut identifiers = IdentifierCache::default();
        for hash in 0..10 * GENERATION_MAX as u64 {
            identifiers.note(0, KeyHash(hash), &hash.to_be_bytes());
            assert_eq!(identifiers.find(0, KeyHash(hash)), Some(&hash.to_be_bytes()[..]));
        }
        assert!(identifiers.young.len() + identifiers.old.len() <= 2 * GENERATION_MAX);
        assert!(identifiers.find(0, KeyHash(9 * GENERATION_MAX as u64)).is_some());
        assert!(
            identifiers.find(0, KeyHash(1)).is_none()
                && identifiers.find(1, KeyHash(9 * GENERATION_MAX as u64)).is_none()
        );
    }
}

//! Counts per key, for limits such as "connections per network". A key with a count of zero takes no memory.

use std::collections::HashMap;
use std::hash::Hash;

/// The count of each key.
#[derive(Debug)]
pub(crate) struct KeyCounts<K>(HashMap<K, usize>);

impl<K> Default for KeyCounts<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> KeyCounts<K> {
    /// The count of `key`.
    pub(crate) fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// The number of keys with a count above zero.
    pub(crate) fn keys(&self) -> usize {
        self.0.len()
    }

    /// The sum of all counts. It visits every key.
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }

    pub(crate) fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    /// Reverses one [`Self::add`]. Does nothing if the count is zero.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_apart_and_forgotten_at_zero() {
        let mut counts = KeyCounts::default();
        counts.remove(&"unknown");
        for key in ["a", "b", "a"] {
            counts.add(key);
        }
        assert_eq!((counts.of(&"a"), counts.of(&"b"), counts.of(&"c"), counts.total()), (2, 1, 0, 3));
        counts.remove(&"a");
        counts.remove(&"b");
        assert_eq!((counts.of(&"a"), counts.0.len()), (1, 1));
    }
}

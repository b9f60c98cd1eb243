//! The set of flagged accounts, for rules and priorities with a condition on flags: if there are any, it is read for
//! every request. It changes a few times a day.
//!
//! A lock around a set would be contended by every request. Therefore this is a hash table of atomic words that is read
//! without a lock; only the watch writes to it, under its own lock. A word is the hash of an account with a seed that
//! changes at each start, so that a client cannot construct a collision. While an entry is removed, entries after it
//! move, and a concurrent lookup may miss one of them. That is acceptable, because a flag only selects a more lenient
//! or stricter rule for one request.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::escape::escape_key_pieces;
use super::feed::NAME_BYTES_MAX;

/// Number of slots: more than twice the limit of flags.
const SLOTS: usize = 1 << 18;
/// The word of an empty slot.
const EMPTY: u64 = 0;

/// The set of flagged accounts.
#[derive(Default)]
pub(crate) struct Flagged {
    hasher: RandomState,
    /// Allocated with the first flag.
    slots: OnceLock<Box<[AtomicU64]>>,
    count: AtomicUsize,
}

impl Flagged {
    /// Whether no account is flagged.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether an account is flagged; `name` is its key in bytes, as in a request.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        let Some(slots) = self.slots.get() else { return false };
        find(slots, self.word_of_name(name)).is_ok()
    }

    /// Adds an account. There must be only one writer at a time.
    pub(super) fn insert(&self, account: &str) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(EMPTY)).collect());
        let word = self.word(account);
        if let Err(free) = find(slots, word)
            && self.count.load(Ordering::Relaxed) < slots.len() / 2
        {
            slots[free].store(word, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes an account. There must be only one writer at a time.
    pub(super) fn remove(&self, account: &str) {
        let Some(slots) = self.slots.get() else { return };
        let Ok(mut gap) = find(slots, self.word(account)) else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        // Move entries that were displaced past the gap into it, so that a search from their home slot still finds
        // them.
        let mut slot = gap;
        loop {
            slot = (slot + 1) % slots.len();
            let word = slots[slot].load(Ordering::Relaxed);
            if word == EMPTY {
                break;
            }
            let distance = |from: usize, to: usize| (to + slots.len() - from) % slots.len();
            if distance(home(slots, word), slot) >= distance(gap, slot) {
                slots[gap].store(word, Ordering::Relaxed);
                gap = slot;
            }
        }
        slots[gap].store(EMPTY, Ordering::Relaxed);
    }

    /// Hash of an account in the text form of the watch; never [`EMPTY`].
    fn word(&self, account: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(account.as_bytes());
        hasher.finish().max(1)
    }

    /// The same hash for the key in bytes. The watch stores keys truncated and escaped, so the hash is of that text.
    fn word_of_name(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        escape_key_pieces(&name[..name.len().min(NAME_BYTES_MAX)], |piece| hasher.write(piece));
        hasher.finish().max(1)
    }
}

/// Slot at which the search for a word starts.
fn home(slots: &[AtomicU64], word: u64) -> usize {
    (word >> 32) as usize % slots.len()
}

/// Slot of a word, or the free slot where it would be inserted.
fn find(slots: &[AtomicU64], word: u64) -> Result<usize, usize> {
    let mut slot = home(slots, word);
    // At least half of the slots are empty, so the search ends. The bound matters only while another thread changes the
    // table.
    for _ in 0..slots.len() {
        match slots[slot].load(Ordering::Relaxed) {
            EMPTY => break,
            found if found == word => return Ok(slot),
            _ => slot = (slot + 1) % slots.len(),
        }
    }
    Err(slot)
}

#[cfg(test)]
mod tests {
    use super::super::escape_key;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn an_account_is_found_by_the_key_of_a_request(name in prop::collection::vec(any::<u8>(), 0..300)) {
            let flagged = Flagged::default();
            prop_assert!(flagged.is_empty() && !flagged.contains(&name));
            let account = escape_key(&name[..name.len().min(NAME_BYTES_MAX)]);
            flagged.insert(&account);
            prop_assert!(flagged.contains(&name) && !flagged.is_empty());
            flagged.remove(&account);
            prop_assert!(flagged.is_empty() && !flagged.contains(&name));
        }
    }

    /// Few slots, so that searches wrap around and collide.
    #[test]
    fn insertions_and_removals_match_a_hash_set() {
        let few: Box<[AtomicU64]> = (0..64).map(|_| AtomicU64::new(EMPTY)).collect();
        let flagged = Flagged { slots: OnceLock::from(few), ..Flagged::default() };
        let (mut model, mut random) = (HashSet::new(), 7_u64);
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let account = ((random >> 33) % 40).to_string();
            if model.contains(&account) || step % 2 == 0 {
                flagged.remove(&account);
                model.remove(&account);
            } else if model.len() < 32 {
                flagged.insert(&account);
                model.insert(account);
            }
            assert_eq!(flagged.count.load(Ordering::Relaxed), model.len());
            for account in (0..40).map(|number: u32| number.to_string()) {
                assert_eq!(flagged.contains(account.as_bytes()), model.contains(&account), "{account} at {step}");
            }
        }
        model.drain().for_each(|account| flagged.remove(&account));
        assert!(flagged.slots.get().unwrap().iter().all(|slot| slot.load(Ordering::Relaxed) == EMPTY));
    }

    #[test]
    fn it_is_bounded() {
        let few: Box<[AtomicU64]> = (0..64).map(|_| AtomicU64::new(EMPTY)).collect();
        let flagged = Flagged { slots: OnceLock::from(few), ..Flagged::default() };
        (0..100).for_each(|number| flagged.insert(&number.to_string()));
        assert_eq!((0..100).filter(|number: &u32| flagged.contains(number.to_string().as_bytes())).count(), 32);
    }
}

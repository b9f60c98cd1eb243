//! Bounds the requests that rules hold (delay before they are forwarded), in total and per key. A request without a
//! slot is refused instead of held.
//!
//! With a total limit alone, the first key that is held could take all slots, and all other keys would be refused.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tollgate_core::time::Span;

use crate::key_counts::KeyCounts;
use crate::settings::Hold;

/// A key may have as many slots as a quarter of the free ones, and at least this many.
const PER_KEY_MIN: u32 = 2;
/// Shards of the counts per key, so that keys rarely wait for each other's lock.
const SHARDS: usize = 16;

/// The held requests.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    total: AtomicU32,
    /// The number of held requests per key, by the hash of rule and key. There are never more keys than requests.
    keys: [Mutex<KeyCounts<u64>>; SHARDS],
    hasher: RandomState,
}

/// One held request. Dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct HoldSlot<'a> {
    holds: &'a Holds,
    key: u64,
    /// The length of the hold, for which the caller delays the request.
    pub(crate) wait: Span,
}

impl Holds {
    /// The number of held requests.
    pub(crate) fn total(&self) -> u32 {
        self.total.load(Ordering::Relaxed)
    }

    /// A slot for a request of `key` that the rule with index `rule` holds for `wait`; none if the settings `hold` do
    /// not permit so long a wait, or if there is no slot for this key.
    pub(crate) fn take(&self, rule: usize, key: &[u8], hold: Hold, wait: Span) -> Option<HoldSlot<'_>> {
        if wait > hold.max {
            return None;
        }
        let more = |held: u32| (held < hold.total).then_some(held + 1);
        self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let free = hold.total - self.total().min(hold.total);
        let per_key_max = PER_KEY_MIN.max(free / 4) as usize;
        let key = self.hasher.hash_one((rule, key));
        let mut keys = self.shard(key);
        if keys.of(&key) >= per_key_max {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        keys.add(key);
        Some(HoldSlot { holds: self, key, wait })
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, KeyCounts<u64>> {
        self.keys[key as usize % SHARDS].lock()
    }
}

impl Drop for HoldSlot<'_> {
    fn drop(&mut self) {
        self.holds.total.fetch_sub(1, Ordering::Relaxed);
        self.holds.shard(self.key).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Hold = Hold { max: Span::from_secs(10), total: 5, memory: 0 };

    fn take<'a>(holds: &'a Holds, key: &[u8]) -> Option<HoldSlot<'a>> {
        holds.take(0, key, HOLD, Span::from_secs(1))
    }

    #[test]
    fn one_key_does_not_take_the_places_of_others() {
        let holds = Holds::default();
        let first = [take(&holds, b"a"), take(&holds, b"a")];
        assert!(first.iter().all(Option::is_some) && take(&holds, b"a").is_none());
        let others = [take(&holds, b"b"), take(&holds, b"c"), holds.take(1, b"a", HOLD, Span::ZERO)];
        assert!(others.iter().all(Option::is_some), "the same key of another rule is another");
        assert!(take(&holds, b"d").is_none(), "five are held in all");
        assert_eq!(holds.total(), 5);
        drop(first);
        assert!(take(&holds, b"a").is_some());
    }

    #[test]
    fn ended_holds_leave_no_entries() {
        let holds = Holds::default();
        for key in 0..100u32 {
            drop(take(&holds, &key.to_be_bytes()));
        }
        assert_eq!(holds.total(), 0);
        assert!(holds.keys.iter().all(|keys| keys.lock().total() == 0));
    }

    #[test]
    fn nobody_is_held_for_longer_than_the_longest_hold() {
        let holds = Holds::default();
        assert!(holds.take(0, b"a", HOLD, Span::from_millis(10_001)).is_none());
        assert_eq!(holds.total(), 0);
    }
}

//! Refusals on their way from the workers of a gate to the watch.
//!
//! Whoever refuses a request must not wait for whoever writes about it. So a refusal is an add to a small map that is emptied once a second,
//! and the one lock that is taken is shared only with refusals of keys that fall into the same shard. A request that is let in does
//! not come here at all. Shards are bounded; what has no place is counted.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;

/// How many shards there are.
const SHARDS: usize = 16;
/// How many callers a shard tells apart until it is emptied.
const SHARD_CALLERS_MAX: usize = 4096;
/// Longer classes or keys are cut.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Where gates leave refusals.
pub(crate) struct Feed {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    dropped: AtomicU64,
}

#[derive(Default)]
struct Shard {
    by_name: HashMap<Box<[u8]>, u64, RandomState>,
    /// The class and the key as one name; kept to be used again.
    name: Vec<u8>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Feed {
    /// A request of this caller was refused.
    pub(crate) fn refused(&self, class: &str, key: &[u8]) {
        let class = &class.as_bytes()[..class.len().min(NAME_BYTES_MAX)];
        let key = &key[..key.len().min(NAME_BYTES_MAX)];
        let place = (self.hasher.hash_one(key) >> 32) as usize % SHARDS;
        let mut shard = self.shards[place].lock().unwrap_or_else(PoisonError::into_inner);
        let Shard { by_name, name } = &mut *shard;
        name.clear();
        name.push(class.len() as u8);
        name.extend_from_slice(class);
        name.extend_from_slice(key);
        if let Some(count) = by_name.get_mut(&name[..]) {
            *count += 1;
        } else if by_name.len() < SHARD_CALLERS_MAX {
            by_name.insert(name.as_slice().into(), 1);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes everything out: class, key and how often it was refused.
    pub(crate) fn take(&self) -> Vec<(String, String, u64)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let by_name = std::mem::take(&mut shard.lock().unwrap_or_else(PoisonError::into_inner).by_name);
            taken.extend(by_name.into_iter().map(|(name, count)| {
                let (class, key) = name[1..].split_at(usize::from(name[0]));
                (legible(class), legible(key), count)
            }));
        }
        taken
    }

    /// How many refusals had no place.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A name as text: what is no text is written as `\xNN`, so that two names stay two.
pub(crate) fn legible(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_come_out_counted_and_once() {
        let feed = Feed::default();
        for _ in 0..3 {
            feed.refused("ip/32", b"203.0.113.7");
        }
        feed.refused("user", b"203.0.113.7");
        feed.refused("user", b"a\xffb");
        let mut taken = feed.take();
        taken.sort();
        let expect = [("ip/32", "203.0.113.7", 3), ("user", "203.0.113.7", 1), ("user", "a\\xffb", 1)];
        assert_eq!(taken, expect.map(|(class, key, count)| (class.to_owned(), key.to_owned(), count)));
        assert_eq!(feed.take(), []);
    }

    #[test]
    fn invented_callers_are_bounded_and_what_has_no_place_is_counted() {
        let feed = Feed::default();
        for number in 0..100_000_u64 {
            feed.refused("user", &number.to_be_bytes());
        }
        let kept = feed.take().len();
        assert!(kept <= SHARDS * SHARD_CALLERS_MAX);
        assert_eq!(kept as u64 + feed.dropped(), 100_000);
    }

    #[test]
    fn a_name_of_any_length_is_taken() {
        let feed = Feed::default();
        feed.refused(&"c".repeat(999), &[b'k'; 9999]);
        feed.refused("", b"");
        assert_eq!(feed.take().len(), 2);
    }
}

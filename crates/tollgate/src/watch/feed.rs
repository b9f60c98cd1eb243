//! Refusals on their way from the workers of a gate to the watch.
//!
//! Whoever refuses a request must not wait for whoever writes about it. So a refusal is an add to a small map that is emptied once a second,
//! and the one lock that is taken is shared only with refusals of keys that fall into the same shard. A request that is let in does
//! not come here at all. Shards are bounded; what has no place is counted.
//!
//! Callers are told apart by a hash of 64 bits under a secret of this process, as they are where spenders are counted: comparing names, which lie
//! somewhere else in memory, took as long as everything else together.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::quality::RandomState;

use super::record::Entry;

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

/// Refusals by the hashes of their callers.
type Shard = HashMap<u64, Left, BuildHasherDefault<Itself>>;

/// The hash of a hash.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Refusals of one caller, as they were left.
pub(crate) struct Left {
    /// The length of the class, the class, the key.
    name: Box<[u8]>,
    count: u64,
}

impl Left {
    /// The same as others report it.
    pub(super) fn entry(&self) -> Entry<'_> {
        let (class, key) = self.name[1..].split_at(usize::from(self.name[0]));
        Entry { class: legible(class), key: legible(key), count: self.count }
    }
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
        let hash = self.hasher.hash_one((class, key));
        let mut shard = self.shards[(hash >> 32) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = shard.get_mut(&hash) {
            left.count += 1;
        } else if shard.len() < SHARD_CALLERS_MAX {
            let name = [&[class.len() as u8], class, key].concat().into();
            shard.insert(hash, Left { name, count: 1 });
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> Vec<Left> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let lefts = {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                // Whoever was refused is likely to be refused again: a worker must not wait while the map grows to the same size.
                let next = Shard::with_capacity_and_hasher(shard.len(), BuildHasherDefault::default());
                std::mem::replace(&mut *shard, next)
            };
            taken.extend(lefts.into_values());
        }
        taken
    }

    /// How many refusals had no place.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A name as text: what is no text is written as `\xNN`, so that two names stay two.
pub(crate) fn legible(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    Cow::Owned(text)
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
        let taken = feed.take();
        let mut taken: Vec<_> = taken.iter().map(Left::entry).collect();
        taken.sort_by(|a, b| (&a.class, &a.key).cmp(&(&b.class, &b.key)));
        let expect = [("ip/32", "203.0.113.7", 3), ("user", "203.0.113.7", 1), ("user", "a\\xffb", 1)];
        assert_eq!(taken, expect.map(|(class, key, count)| Entry { class: class.into(), key: key.into(), count }));
        assert_eq!(feed.take().len(), 0);
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

//! The number of streams that report each bucket of Envoy's quota service. The limit of a bucket is divided between
//! them.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::messages::DescriptorEntry;
use crate::key_counts::KeyCounts;

/// The maximum number of buckets of all streams together.
const BUCKETS_MAX: usize = 65_536;

/// The number of streams of each bucket. It is locked once for each bucket of a report, which Envoy sends every few
/// seconds.
#[derive(Default)]
pub(in crate::doors) struct QuotaRegistry(Mutex<KeyCounts<String>>);

/// The buckets of one stream; they are removed when it ends.
pub(super) struct Subscriptions {
    registry: Arc<QuotaRegistry>,
    own: HashSet<String>,
}

impl Subscriptions {
    pub(super) fn new(registry: Arc<QuotaRegistry>) -> Self {
        Self { registry, own: HashSet::new() }
    }

    /// Adds a bucket, unless it is known, and returns how many streams report it. `None` if this stream would have more
    /// than `own_max` buckets, or all streams more than [`BUCKETS_MAX`].
    pub(super) fn add(&mut self, domain: &str, entries: &[DescriptorEntry], own_max: usize) -> Option<u64> {
        let mut name = format!("{}:{domain}", domain.len());
        for DescriptorEntry { key, value } in entries {
            name += &format!("|{}:{key}|{}:{value}", key.len(), value.len());
        }
        let mut streams = self.registry.0.lock();
        if !self.own.contains(&name) {
            if self.own.len() == own_max || streams.keys() == BUCKETS_MAX && streams.of(&name) == 0 {
                return None;
            }
            streams.add(name.clone());
            self.own.insert(name.clone());
        }
        Some(streams.of(&name) as u64)
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        let mut streams = self.registry.0.lock();
        self.own.iter().for_each(|name| streams.remove(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_the_streams_that_have_it() {
        let registry = Arc::new(QuotaRegistry::default());
        let entries = |value: &str| vec![DescriptorEntry { key: "a".to_owned(), value: value.to_owned() }];
        let mut first = Subscriptions::new(registry.clone());
        let mut second = Subscriptions::new(registry.clone());
        assert_eq!(first.add("d", &entries("x"), 2), Some(1));
        assert_eq!(second.add("d", &entries("x"), 2), Some(2));
        assert_eq!(first.add("d", &entries("x"), 2), Some(2));
        assert_eq!(first.add("d", &entries("y"), 2), Some(1));
        assert_eq!(first.add("e", &entries("y"), 2), None);
        drop(second);
        assert_eq!(first.add("d", &entries("x"), 2), Some(1));
        drop(first);
        assert_eq!(registry.0.lock().keys(), 0);
    }
}

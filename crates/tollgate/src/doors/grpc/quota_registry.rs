//! The number of streams that report each bucket of Envoy's quota service.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::messages::DescriptorEntry;

/// The maximum number of buckets of all streams together.
const BUCKETS_MAX: usize = 65_536;

/// The number of streams of each bucket. It is locked once per report, which Envoy sends every few seconds.
#[derive(Default)]
pub(in crate::doors) struct QuotaRegistry(Mutex<HashMap<String, u64>>);

/// The buckets of one stream; they are removed when it ends.
pub(super) struct Subscriptions {
    registry: Arc<QuotaRegistry>,
    own: HashSet<String>,
}

impl Subscriptions {
    pub(super) fn new(registry: Arc<QuotaRegistry>) -> Self {
        Self { registry, own: HashSet::new() }
    }

    /// Adds a bucket, and returns how many streams have it. `None` if there are too many buckets.
    pub(super) fn add(&mut self, domain: &str, entries: &[DescriptorEntry], own_max: usize) -> Option<u64> {
        let mut name = format!("{}:{domain}", domain.len());
        for DescriptorEntry { key, value } in entries {
            name += &format!("|{}:{key}|{}:{value}", key.len(), value.len());
        }
        let mut streams = self.registry.0.lock();
        if self.own.contains(&name) {
            return streams.get(&name).copied();
        }
        if self.own.len() == own_max || streams.len() == BUCKETS_MAX && !streams.contains_key(&name) {
            return None;
        }
        let count = streams.entry(name.clone()).or_default();
        *count += 1;
        self.own.insert(name);
        Some(*count)
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        let mut streams = self.registry.0.lock();
        for name in self.own.drain() {
            if let Some(count) = streams.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    streams.remove(&name);
                }
            }
        }
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
        assert!(registry.0.lock().is_empty());
    }
}

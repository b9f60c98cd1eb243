//! Limits whose parameters come with each call, in one table for all keys. The gRPC door uses them for descriptors with
//! which Envoy sends a limit of its own.

use tollgate_core::class::Class;
use tollgate_core::limit::{Bucket, Limit, LimitInfo, Room};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::adjust;
use crate::hash::Seed;
use crate::key_record::KeyRecord;
use crate::limiter::ActiveRule;
use crate::table::{Table, TableError};

/// The records of all keys, in memory of fixed size. The parameters of the rule inside are not used.
pub(crate) struct CallTable(pub(crate) ActiveRule);

impl CallTable {
    /// A table of at most `bytes` bytes for records like those of `limit`.
    pub(crate) fn new(limit: Limit, bytes: usize, seed: Seed) -> Result<Self, TableError> {
        let rule = Rule::new("", Class::parse("identifier").expect("the class is known"), limit);
        let table = Table::new(&rule, bytes, seed)?;
        Ok(Self(ActiveRule::new(rule, table)))
    }

    /// Calls `change` with the record of `key`, while its row is locked.
    pub(crate) fn with_record<T>(&self, key: &[u8], now: Moment, change: impl FnOnce(&mut KeyRecord<'_>) -> T) -> T {
        self.0.with_record(self.0.table.hasher.hash(key), now, change)
    }
}

/// The buckets of all keys.
pub struct CallLimitTable(CallTable);

impl CallLimitTable {
    /// A table of at most `bytes` bytes.
    pub fn new(bytes: usize, seed: Seed) -> Result<Self, TableError> {
        // Its records have the layout of any bucket's.
        let bucket = Bucket::new(2, 2, Span::from_secs(1)).expect("two per second is a bucket");
        CallTable::new(Limit::Bucket(bucket), bytes, seed).map(Self)
    }

    /// Decides on `count` requests of `key`, and charges them if they fit. Returns whether they fit, and the state
    /// afterwards. The key must contain the parameters of the bucket, because a record has a meaning only together with
    /// them.
    pub fn decide(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) -> (bool, LimitInfo) {
        let (limit, toll) = (Limit::Bucket(bucket), Toll { count, cpu: Span::ZERO });
        self.0.with_record(key, now, |record| {
            let fits = limit.room(record, toll, now) == Room::Now;
            if fits && count > 0 {
                limit.charge(record, toll, now);
            }
            (fits, limit.info(record, now))
        })
    }

    /// Charges as many of `count` requests of `key` as fit.
    pub fn charge_rest(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) {
        self.0.with_record(key, now, |record| adjust::charge_rest(&Limit::Bucket(bucket), record, count, now));
    }

    /// Returns `count` requests to `key`.
    pub fn give_back(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) {
        self.0.with_record(key, now, |record| adjust::give_back(&Limit::Bucket(bucket), record, count, now));
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_quota_once_per_period() {
        let table = CallLimitTable::new(1 << 16, Seed::fixed(7)).unwrap();
        let bucket = Bucket::new(3, 3, Span::from_secs(60)).unwrap();
        let at = Moment::from_millis;
        let decide = |key: &[u8], count, now| {
            let (fits, info) = table.decide(key, bucket, count, now);
            (fits, info.remaining)
        };
        assert_eq!(decide(b"a", 2, at(1_000)), (true, 1));
        assert_eq!(decide(b"a", 2, at(1_000)), (false, 1));
        assert_eq!(decide(b"b", 3, at(1_000)), (true, 0));
        assert_eq!(decide(b"a", 0, at(2_000)), (true, 1));
        table.charge_rest(b"a", bucket, 2, at(2_000));
        assert_eq!(decide(b"a", 1, at(2_000)), (false, 0));
        table.give_back(b"a", bucket, 2, at(3_000));
        assert_eq!(decide(b"a", 1, at(3_000)), (true, 1));
        table.give_back(b"a", bucket, 100, at(3_000));
        assert_eq!(decide(b"a", 0, at(3_000)), (true, 3));
        assert_eq!(decide(b"b", 1, at(60_999)), (false, 0));
        assert_eq!(decide(b"b", 1, at(61_000)), (true, 2));
    }
}

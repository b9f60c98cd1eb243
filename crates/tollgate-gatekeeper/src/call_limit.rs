//! Limits whose parameters come with each call, as overrides of Envoy's descriptors do: one table for all keys.

use std::sync::Arc;

use tollgate_core::class::Class;
use tollgate_core::condition::Condition;
use tollgate_core::limit::{Bucket, Charge, Limit, LimitInfo, Room};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::hash::Seed;
use crate::table::{Table, TableError};

/// The buckets of all keys, in memory of fixed size.
pub struct CallLimitTable {
    table: Arc<Table>,
    /// A rule whose records have the layout of any bucket's.
    rule: Rule,
}

impl CallLimitTable {
    /// A table of at most `bytes` bytes.
    pub fn new(bytes: usize, seed: Seed) -> Result<Self, TableError> {
        let bucket = Bucket::new(2, 2, Span::from_secs(1)).expect("two per second is a bucket");
        let rule = Rule {
            name: "override".into(),
            when: Condition::default(),
            unless: Vec::new(),
            class: Class::parse("identifier").expect("the class is known"),
            limit: Limit::Bucket(bucket),
            escalation: None,
            warmup: None,
            hold_max: Span::ZERO,
            mode: Mode::Enforce,
        };
        Ok(Self { table: Table::new(&rule, bytes, seed)?, rule })
    }

    /// Decides on `count` requests of `key`, and charges them if they fit. Returns whether they fit, and the state
    /// afterwards. The key must contain the parameters of the bucket, because a record has a meaning only together with
    /// them.
    pub fn decide(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) -> (bool, LimitInfo) {
        let limit = Limit::Bucket(bucket);
        let toll = Toll { count, cpu: Span::ZERO };
        let mut record = self.table.record(&self.rule, self.table.hasher().hash(key), now);
        let _held = record.lock();
        record.refresh();
        let fits = limit.room(&record, toll, now) == Room::Now;
        if fits && count > 0 {
            limit.charge(&mut record, toll, now);
        }
        (fits, limit.info(&record, now))
    }

    /// Charges as many of `count` requests of `key` as fit.
    pub fn charge_rest(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) {
        let limit = Limit::Bucket(bucket);
        let mut record = self.table.record(&self.rule, self.table.hasher().hash(key), now);
        let _held = record.lock();
        record.refresh();
        let count = limit.info(&record, now).remaining.min(count);
        if count > 0 {
            limit.charge(&mut record, Toll { count, cpu: Span::ZERO }, now);
        }
    }

    /// Returns `count` requests to `key`.
    pub fn give_back(&self, key: &[u8], bucket: Bucket, count: u64, now: Moment) {
        let limit = Limit::Bucket(bucket);
        let mut record = self.table.record(&self.rule, self.table.hasher().hash(key), now);
        let _held = record.lock();
        record.refresh();
        // The overflow record is shared with other keys.
        if record.has_slot() {
            let charged = Charge { at: now, mark: limit.mark(&record) };
            limit.refund(&mut record, Toll { count, cpu: Span::ZERO }, charged, now);
        }
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

//! Rate limits whose parameters come with each call, in one table for all keys. The RESP door uses them for
//! `CL.THROTTLE`, the command of redis-cell, a Redis module for rate limits.

use tollgate_core::cell::{Cell, CellReply};
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::{Moment, Span};

use crate::call_limit::CallTable;
use crate::hash::Seed;
use crate::table::TableError;

/// The state of all keys, in memory of fixed size: for each key, the time at which all its charges are paid back.
pub struct CellTable(CallTable);

impl CellTable {
    /// A table of at most `bytes` bytes.
    pub fn new(bytes: usize, seed: Seed) -> Result<Self, TableError> {
        // Only the layout of the records matters. The record of a rate is one moment with the same meaning as that of a
        // cell.
        let one_per_sec = Rate::new(1, Span::from_secs(1), 1).expect("one per second is a rate");
        CallTable::new(Limit::Rate(one_per_sec), bytes, seed).map(Self)
    }

    /// Decides on `quantity` requests of `key`, and charges them if they are admitted. A quantity of 0 changes nothing;
    /// a negative one refunds.
    pub fn throttle(&self, key: &[u8], cell: Cell, quantity: i64, now: Moment) -> CellReply {
        self.0.with_record(key, now, |record| cell.throttle(record, quantity, now))
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_own_state_and_threads_admit_no_more_than_the_limit() {
        let table = CellTable::new(1 << 20, Seed::fixed(7)).unwrap();
        let (cell, now) = (Cell::new(99, 1, 60).unwrap(), Moment::from_millis(1_000));
        let admitted = |key: &[u8]| {
            let admits = |_: &usize| !table.throttle(key, cell, 1, now).is_limited;
            (0..100).filter(admits).count()
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| admitted(b"one"))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 100);
        assert_eq!(admitted(b"other"), 100);
        assert!(table.0.0.table.report().bytes <= 1 << 20);
    }
}

//! Fault 31: a rate of a billion per second, which is one request per nanosecond, stays exact for a day.

use proptest::prelude::*;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

const DAY_NANOS: u64 = 86_400_000_000_000;

/// The same limit in unbounded integers: time in units of 1/`count` nanoseconds, so that nothing is rounded.
struct Oracle {
    count: u128,
    period_nanos: u128,
    burst: u128,
    paid_until: u128,
}

impl Oracle {
    fn admits(&mut self, now: Moment, quantity: u64) -> bool {
        let now = u128::from(now.as_nanos()) * self.count;
        let paid_until = self.paid_until.max(now) + u128::from(quantity) * self.period_nanos;
        let fits = u128::from(quantity) <= self.burst && paid_until <= now + self.burst * self.period_nanos;
        if fits {
            self.paid_until = paid_until;
        }
        fits
    }
}

/// Rates around one per nanosecond.
fn counts() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1_000_000_000), Just(999_999_999), Just(999_999_937), 500_000_000..=1_000_000_000_u64]
}

/// Gaps in which a few requests become free, and some of hours.
fn gaps() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..3_u64, 4 => 0..2_000_u64, 2 => 0..2_000_000_000_u64, 1 => 0..DAY_NANOS / 20]
}

proptest! {
    #[test]
    fn fault_31_a_billion_per_second_agrees_with_unbounded_integers_for_a_day(
        count in counts(),
        burst in prop_oneof![1..5_u64, 1..2_000_u64, 1..=1_000_000_000_u64],
        start in prop_oneof![Just(0), 0..100 * DAY_NANOS],
        steps in prop::collection::vec((gaps(), prop_oneof![0..3_u64, 1..2_000_u64, 1..=1_000_000_001_u64]), 1..200),
    ) {
        let limit = rule(Limit::Rate(Rate::new(count, Span::from_secs(1), burst).unwrap()));
        let mut record = fresh(&limit);
        let period_nanos = 1_000_000_000;
        let mut oracle = Oracle { count: u128::from(count), period_nanos, burst: u128::from(burst), paid_until: 0 };
        let mut now = Moment::from_nanos(start);
        for (gap, quantity) in steps {
            now = now + Span::from_nanos(gap);
            let toll = Toll { count: quantity, cpu: Span::ZERO };
            let is_admitted = ask(&limit, &mut record, toll, &at(now)).verdict == Verdict::Admit;
            prop_assert_eq!(is_admitted, oracle.admits(now, quantity), "{} at {:?}", quantity, now);
        }
    }
}

#[test]
fn fault_31_continuous_requests_at_a_billion_per_second_get_exactly_that_after_a_day() {
    let limit = rule(Limit::Rate(Rate::new(1_000_000_000, Span::from_secs(1), 1).unwrap()));
    let mut record = fresh(&limit);
    for start in [0, DAY_NANOS, 365 * DAY_NANOS] {
        for nanos in 0..2_000 {
            let now = Moment::from_nanos(start + nanos);
            // One fits into each nanosecond, and the second does not.
            assert_eq!(ask(&limit, &mut record, Toll::ONE, &at(now)).verdict, Verdict::Admit);
            let second = ask(&limit, &mut record, Toll::ONE, &at(now)).verdict;
            assert_eq!(second, Verdict::Refuse(now + Span::from_nanos(1)));
        }
    }
}

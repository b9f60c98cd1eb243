//! The fast path agrees with the general path.

use proptest::prelude::*;
use tollgate_core::fast_rate::FastRate;
use tollgate_core::limit::{Bucket, Limit, Rate};
use tollgate_core::record::Record;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

fn limits_with_a_fast_path() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (1..5_000_000_000_u64, 1..50_u64)
            .prop_map(|(nanos, burst)| Limit::Rate(Rate::new(1, Span::from_nanos(nanos), burst).unwrap())),
        (prop_oneof![Just(1_u64), Just(100), Just(1_000), Just(1_000_000_000)], 1..50_u64)
            .prop_map(|(count, burst)| Limit::Rate(Rate::new(count, Span::from_secs(1), burst).unwrap())),
        (1..50_u32, 1..5_000_000_000_u64)
            .prop_map(|(size, nanos)| Limit::Bucket(Bucket::new(size, 1, Span::from_nanos(nanos)).unwrap())),
    ]
}

proptest! {
    #[test]
    fn the_fast_path_decides_as_its_rule_does(
        limit in limits_with_a_fast_path(), hold_ms in prop_oneof![Just(0_u64), 0..5_000_u64], arrivals in arrivals(), start in any::<u64>(),
    ) {
        let rule = Rule { hold_max: Span::from_millis(hold_ms), ..rule(limit) };
        let beat = FastRate::of(&rule).expect("these limits have a beat");
        let mut record = fresh(&rule);
        let mut word = Moment::ZERO;
        // The start is far from the end of time, where sums saturate and are not exact.
        let mut now = Moment::from_nanos(start / 4);
        for (gap, _) in arrivals {
            now = now + gap;
            let (verdict, spent) = beat.decide(word, now);
            if !verdict.is_refusal() {
                word = spent;
            }
            prop_assert_eq!(verdict, ask(&rule, &mut record, Toll::ONE, &at(now)).verdict);
            prop_assert_eq!((word.as_nanos(), 0), (record.word(0), record.aux()));
        }
    }

    #[test]
    fn the_fast_path_holds_exactly_as_long_as_its_rule_does(burst in 1..5_u64, steps in 0..5_u64) {
        let limit = Limit::Rate(Rate::new(1, Span::from_secs(1), burst).unwrap());
        let rule = Rule { hold_max: Span::from_secs(steps), ..rule(limit) };
        let beat = FastRate::of(&rule).unwrap();
        let mut record = fresh(&rule);
        for _ in 0..12 {
            let (verdict, _) = beat.decide(Moment::from_nanos(record.word(0)), millis(500));
            prop_assert_eq!(verdict, ask(&rule, &mut record, Toll::ONE, &at(millis(500))).verdict);
        }
    }

    #[test]
    fn a_rule_with_escalation_warmup_or_observe_mode_has_no_fast_path(limit in limits_with_a_fast_path(), escalation in escalations()) {
        prop_assert_eq!(FastRate::of(&Rule { escalation: Some(escalation), ..rule(limit) }), None);
        prop_assert_eq!(FastRate::of(&Rule { warmup: Some(Span::from_secs(1)), ..rule(limit) }), None);
        prop_assert_eq!(FastRate::of(&Rule { mode: Mode::Observe, ..rule(limit) }), None);
    }
}

#[test]
fn a_fractional_interval_or_a_larger_drip_has_no_fast_path() {
    let thirds = Limit::Rate(Rate::new(3, Span::from_secs(1), 3).unwrap());
    let pairs = Limit::Bucket(Bucket::new(10, 2, Span::from_secs(1)).unwrap());
    assert_eq!((FastRate::of(&rule(thirds)), FastRate::of(&rule(pairs))), (None, None));
}

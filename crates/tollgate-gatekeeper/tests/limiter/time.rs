//! A clock that stops, jumps or lags has no effect on limits.

use proptest::prelude::*;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::fixtures::*;

const YEAR: Span = Span::from_secs(365 * 86_400);

proptest! {
    #[test]
    fn after_a_jump_of_a_year_every_key_is_clear(limit in debts(), arrivals in arrivals(40)) {
        let limiter = one(limit, 2);
        let mut now = Moment::from_millis(1);
        for (key, gap, toll) in arrivals {
            now = now + gap;
            let _ = ask(&limiter, [key], toll, now);
        }
        for key in 0..40_u8 {
            let look = Toll { count: 0, cpu: Span::ZERO };
            prop_assert!(!ask(&limiter, [key], look, now + YEAR).0.is_refusal());
        }
        let _ = ask(&limiter, [0], Toll::of_cpu(Span::MAX), Moment::MAX);
        let _ = ask(&limiter, [0], Toll { count: u64::MAX, cpu: Span::MAX }, Moment::ZERO);
    }

    #[test]
    fn a_clock_that_stops_admits_no_more_than_the_limit(limit in debts(), keys in prop::collection::vec(0..40_u8, 1..300)) {
        let limiter = one(limit, 2);
        let now = Moment::from_millis(50);
        let toll = Toll::of_cpu(Span::from_millis(10));
        let lone = one(limit, 1);
        let alone = (0..1_000).take_while(|_| !ask(&lone, "alone", toll, now).0.is_refusal()).count();
        let mut admitted = [0_usize; 40];
        for key in keys {
            admitted[usize::from(key)] += usize::from(!ask(&limiter, [key], toll, now).0.is_refusal());
        }
        prop_assert!(admitted.iter().all(|&count| count <= alone));
    }

    #[test]
    fn a_lagging_thread_gains_nothing(limit in debts(), keys in prop::collection::vec(0..14_u8, 1..200), lag_ms in 1..1_000_u64) {
        // Fourteen keys in nine or seven slots: records are evicted and created all the time, half of them by
        // a lagging thread.
        let limiter = one(limit, 1);
        let endless = one(limit, 64);
        let toll = Toll::of_cpu(Span::from_millis(10));
        for (turn, key) in keys.into_iter().enumerate() {
            let time = Moment::from_millis(2_000 + turn as u64 * 10);
            let now = if turn % 2 == 0 { time } else { time.before(Span::from_millis(lag_ms)) };
            let small = !ask(&limiter, [key], toll, now).0.is_refusal();
            if matches!(limit, tollgate_core::limit::Limit::Rate(_) | tollgate_core::limit::Limit::Budget(_)) && small {
                prop_assert!(!ask(&endless, [key], toll, now).0.is_refusal());
            }
        }
    }
}

/// One per second, four hot slots in the only row. A forgotten caller leaves a slot that looks unused, even
/// to a thread whose clock is behind.
#[test]
fn a_lagging_thread_finds_evicted_debt() {
    let limiter = one(rate(1, 1, 1), 1);
    let at = Moment::from_millis;
    assert!(admits(&limiter, "first", at(800)));
    assert!(["b", "c", "d"].iter().all(|key| admits(&limiter, key, at(900))));
    // All are clear, and the first of them is evicted.
    assert!(admits(&limiter, "e", at(2_000)));
    assert!(limiter.forget(0, &Caller { name: "e", address: [0; 4] }, at(2_000)));
    assert!(!admits(&limiter, "first", at(1_500)), "its second is not over before 1800 ms");
    assert!(admits(&limiter, "first", at(1_800)));
}

/// A key that had a cold slot, then a hot one, and then none, still has its old cold record.
#[test]
fn an_old_cold_record_does_not_hide_later_charges() {
    let limiter = one(rate(1, 1, 1), 1);
    let at = Moment::from_millis;
    assert!(["a", "b", "c", "d"].iter().all(|key| admits(&limiter, key, at(0))));
    assert!(admits(&limiter, "key", at(100)), "there is room in the back");
    assert!(admits(&limiter, "key", at(1_200)), "now in the front");
    assert!(["e", "f", "g"].iter().all(|key| admits(&limiter, key, at(1_300))));
    assert!(admits(&limiter, "h", at(2_400)), "in the place of the key");
    assert!(limiter.forget(0, &Caller { name: "h", address: [0; 4] }, at(2_400)));
    assert!(
        !admits(&limiter, "key", at(1_101)),
        "the old record is clear by then, and what matters is not before 2200 ms"
    );
}

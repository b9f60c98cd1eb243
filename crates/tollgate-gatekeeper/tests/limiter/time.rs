//! A clock that stops, jumps or lags does nobody a favour and nobody harm.

use proptest::prelude::*;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::world::*;

const YEAR: Span = Span::from_secs(365 * 86_400);

proptest! {
    #[test]
    fn a_clock_that_jumps_a_year_finds_everybody_clear(limit in debts(), arrivals in arrivals(40)) {
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
    fn a_thread_whose_clock_is_behind_gets_nothing_extra(limit in debts(), keys in prop::collection::vec(0..14_u8, 1..200), lag_ms in 1..1_000_u64) {
        // Fourteen keys on nine places or seven: records are dropped and taken up again all the time, half of it by a thread that lags behind.
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

/// One per second, four places in the front of the only line. A caller that was pardoned leaves a place that looks as if it had always
/// been empty, also to a thread whose clock is behind.
#[test]
fn what_left_the_front_is_found_by_a_thread_that_lags() {
    let limiter = one(rate(1, 1, 1), 1);
    let at = Moment::from_millis;
    assert!(admits(&limiter, "first", at(800)));
    assert!(["b", "c", "d"].iter().all(|key| admits(&limiter, key, at(900))));
    // All are clear, and the first of them has to go.
    assert!(admits(&limiter, "e", at(2_000)));
    assert!(limiter.forget(0, &Caller { name: "e", address: [0; 4] }, at(2_000)));
    assert!(!admits(&limiter, "first", at(1_500)), "its second is not over before 1800 ms");
    assert!(admits(&limiter, "first", at(1_800)));
}

/// A key that was in the back, then in the front, and then nowhere, still has its old record in the back.
#[test]
fn an_old_record_in_the_back_is_no_way_around_what_was_charged_since() {
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

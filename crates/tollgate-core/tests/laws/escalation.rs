//! The backoff grows with repeated violations and heals with time, and a band affects only offenders.

use proptest::prelude::*;
use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::limit::{Limit, Window};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

/// ScreenTinker's device throttle: 5 per 10 s, backoff from 1 s to 60 s, one level removed per 30 s.
fn reconnect() -> Rule {
    let backoffs = (Span::from_secs(1), Span::from_secs(60));
    let multipliers = (Multiplier::new(2_000).unwrap(), Multiplier::new(4_000).unwrap());
    let escalation = Escalation::new(backoffs, 10, Span::from_secs(30), multipliers).unwrap();
    let window = Window::new(5, Span::from_millis(10), Some(20)).unwrap();
    Rule { escalation: Some(escalation), ..rule(Limit::Window(window)) }
}

/// Uses up the window and retries once: one violation.
fn violate(rule: &Rule, record: &mut PlainRecord, now: Moment, band: Band) -> Decision {
    loop {
        let decision = ask(rule, record, Toll::ONE, &Situation { band, ..at(now) });
        if decision.verdict.is_refusal() {
            return decision;
        }
    }
}

fn backoff_secs(decision: &Decision, now: Moment) -> u64 {
    decision.verdict.retry_after(now).as_secs_ceil()
}

#[test]
fn the_backoff_doubles_with_every_violation_up_to_its_cap() {
    let rule = reconnect();
    let mut record = fresh(&rule);
    let mut now = millis(1_000);
    for (level, secs) in
        [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (9, 60), (10, 60), (10, 60)]
    {
        let decision = violate(&rule, &mut record, now, Band::Normal);
        assert_eq!((decision.level, backoff_secs(&decision, now)), (level, secs));
        now = now + decision.verdict.retry_after(now);
    }
}

/// A device that reconnects at once whenever it is admitted, with ScreenTinker's own window of 10 s: how long each
/// block lasts.
fn blocks_in(band: Band) -> Vec<u64> {
    let window = Window::new(5, Span::from_secs(10), Some(20)).unwrap();
    let rule = Rule { limit: Limit::Window(window), ..reconnect() };
    let (mut record, mut now) = (fresh(&rule), millis(60_000));
    let mut next_block = || {
        let decision = violate(&rule, &mut record, now, band);
        let secs = backoff_secs(&decision, now);
        now = now + decision.verdict.retry_after(now);
        secs
    };
    (0..5).map(|_| next_block()).collect()
}

#[test]
fn each_block_is_twice_the_one_before_although_the_window_takes_longer_than_the_backoff() {
    // The window has room after 10 s. A block of 1, 2, 4 or 8 s would be announced in vain.
    assert_eq!(blocks_in(Band::Normal), [10, 20, 40, 60, 60]);
    assert_eq!(blocks_in(Band::Elevated), [20, 40, 60, 60, 60]);
    assert_eq!(blocks_in(Band::Critical), [40, 60, 60, 60, 60]);
}

#[test]
fn nothing_remains_while_a_key_is_blocked_although_its_limit_has_room() {
    let rule = reconnect();
    let mut record = fresh(&rule);
    violate(&rule, &mut record, millis(1_000), Band::Normal);
    // The window of 10 ms is empty again, the block of 1 s lasts.
    let blocked = ask(&rule, &mut record, Toll::ONE, &at(millis(1_500)));
    let info = blocked.info.unwrap();
    assert_eq!((blocked.reason, info.remaining), (Reason::InBackoff, 0));
    assert_eq!((info.reset, info.clear), (Span::from_millis(500), Span::from_millis(500)));
    let admitted = ask(&rule, &mut record, Toll::ONE, &at(millis(2_000))).info.unwrap();
    assert_eq!((admitted.remaining, admitted.reset), (4, Span::ZERO));
}

#[test]
fn a_band_multiplies_the_backoff_of_an_offender() {
    for (band, secs) in [(Band::Normal, 1), (Band::Elevated, 2), (Band::Critical, 4)] {
        let rule = reconnect();
        let decision = violate(&rule, &mut fresh(&rule), millis(1), band);
        assert_eq!(backoff_secs(&decision, millis(1)), secs);
        assert_eq!(decision.band, band);
    }
}

#[test]
fn calm_forgives_one_level_per_release_without_any_traffic() {
    let rule = reconnect();
    let mut record = fresh(&rule);
    let mut now = millis(1);
    for _ in 0..3 {
        now = now + violate(&rule, &mut record, now, Band::Normal).verdict.retry_after(now);
    }
    for (calm_secs, level) in [(0, 3), (29, 3), (30, 2), (59, 2), (60, 1), (90, 0), (100_000, 0)] {
        let decision = ask(&rule, &mut record.clone(), Toll::ONE, &at(now + Span::from_secs(calm_secs)));
        assert_eq!((decision.verdict, decision.level), (Verdict::Admit, level), "after {calm_secs} s");
    }
}

#[test]
fn a_device_on_a_timer_of_its_own_is_let_in_again() {
    // ScreenTinker restarts the backoff at every attempt, which locks such devices out permanently.
    for timer_ms in [200, 1_000, 1_500, 3_000] {
        let window = Window::new(5, Span::from_secs(10), Some(20)).unwrap();
        let rule = Rule { limit: Limit::Window(window), ..reconnect() };
        let mut record = fresh(&rule);
        let start = millis(60_000);
        violate(&rule, &mut record, start, Band::Normal);
        let back = (1..)
            .map(|tick| start + Span::from_millis(timer_ms * tick))
            .find(|now| ask(&rule, &mut record, Toll::ONE, &at(*now)).verdict == Verdict::Admit);
        assert!(back.unwrap().since(start) < Span::from_millis(10_000 + timer_ms), "every {timer_ms} ms: {back:?}");
    }
}

proptest! {
    /// The connections of a real device do not come at one moment. When the window has room for the first of them
    /// again, the next ones are still in it.
    #[test]
    fn each_block_is_twice_the_one_before_however_fast_a_device_reconnects(gaps_ms in prop::collection::vec(0..100_u64, 1..12)) {
        let window = Window::new(5, Span::from_secs(10), Some(20)).unwrap();
        let rule = Rule { limit: Limit::Window(window), ..reconnect() };
        let (mut record, mut now, mut blocks_ms) = (fresh(&rule), millis(60_000), Vec::new());
        for gap_ms in gaps_ms.iter().cycle() {
            let decision = ask(&rule, &mut record, Toll::ONE, &at(now));
            let wait = decision.verdict.retry_after(now);
            now = now + if decision.verdict.is_refusal() { wait } else { Span::from_millis(*gap_ms) };
            blocks_ms.extend(decision.verdict.is_refusal().then(|| wait.as_nanos() / 1_000_000));
            if blocks_ms.len() == 5 { break }
        }
        for (block_ms, expect_ms) in blocks_ms.iter().zip([10_000, 20_000, 40_000, 60_000, 60_000]) {
            prop_assert!((expect_ms * 9 / 10..=expect_ms).contains(block_ms), "{blocks_ms:?}");
        }
    }

    #[test]
    fn tries_inside_a_backoff_change_nothing(limit in limits(), escalation in escalations(), tries in 1..20_u64) {
        let rule = Rule { escalation: Some(escalation), ..rule(limit) };
        let mut record = fresh(&rule);
        let toll = Toll::of_cpu(Span::from_secs(100));
        let mut now = millis(1);
        // Stops at the first violation. A limit that is too fast to violate in one moment shows nothing.
        let refused = (0..200).find_map(|_| {
            let decision = ask(&rule, &mut record, toll, &at(now));
            decision.verdict.is_refusal().then_some(decision)
        });
        prop_assume!(refused.is_some_and(|refused| refused.level == 1));
        let until = now + refused.unwrap().verdict.retry_after(now);
        let after = record.clone();
        let step = Span::from_nanos(until.since(now).as_nanos() / (tries + 1));
        for _ in 0..tries {
            now = now + step;
            let decision = ask(&rule, &mut record, toll, &at(now));
            prop_assert!(decision.verdict.is_refusal());
            prop_assert_eq!((now + decision.verdict.retry_after(now), decision.reason), (until, Reason::InBackoff));
            prop_assert_eq!(&record, &after);
        }
    }

    #[test]
    fn a_level_rises_by_one_at_most_per_violation(rule in rules(), arrivals in arrivals(), band in bands()) {
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        let mut level = 0;
        for (gap, toll) in arrivals {
            now = now + gap;
            let decision = ask(&rule, &mut record, toll, &Situation { band, ..at(now) });
            prop_assert!(decision.level <= level + 1);
            level = decision.level;
        }
    }

    #[test]
    fn a_healthy_client_is_never_touched_by_a_band(rule in rules(), arrivals in arrivals(), bands in prop::collection::vec(bands(), 80)) {
        let mut calm = fresh(&rule);
        let mut loaded = fresh(&rule);
        let mut now = Moment::ZERO;
        for ((gap, toll), band) in arrivals.into_iter().zip(bands) {
            now = now + gap;
            let expected = ask(&rule, &mut calm, toll, &at(now));
            let decision = ask(&rule, &mut loaded, toll, &Situation { band, ..at(now) });
            if expected.verdict.is_refusal() {
                // After its first violation the client is an offender, and the band may lengthen its backoff.
                prop_assert!(decision.verdict >= expected.verdict);
                return Ok(());
            }
            prop_assert_eq!(decision.verdict, expected.verdict);
        }
    }
}

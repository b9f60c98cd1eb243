//! All clients reconnect after a restart; only ceilings apply until the warm-up ends.

use tollgate_core::decision::{Reason, Verdict};
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::limit::{Limit, Rate, Window};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

fn reconnect() -> Rule {
    let backoffs = (Span::from_secs(1), Span::from_secs(60));
    let multipliers = (Multiplier::new(2_000).unwrap(), Multiplier::new(4_000).unwrap());
    Rule {
        escalation: Some(Escalation::new(backoffs, 10, Span::from_secs(30), multipliers).unwrap()),
        warmup: Some(Span::from_secs(30)),
        ..rule(Limit::Window(Window::new(5, Span::from_secs(10), Some(20)).unwrap()))
    }
}

#[test]
fn a_fleet_that_reconnects_after_a_deploy_is_not_throttled() {
    let rule = reconnect();
    for device in 0..10_000_u64 {
        let mut record = fresh(&rule);
        // Each device needs up to eight attempts within the first 30 s, more than the limit allows.
        for attempt in 0..=(device % 8) {
            let now = millis((device * 7919 + attempt * 400) % 27_000 + attempt * 300);
            assert_eq!(ask(&rule, &mut record, Toll::ONE, &at(now)).verdict, Verdict::Admit);
        }
    }
}

#[test]
fn the_ceiling_stops_an_offender_in_warmup_and_no_other_client() {
    let rule = reconnect();
    let mut stormer = fresh(&rule);
    let answers: Vec<_> = (0..30).map(|n| ask(&rule, &mut stormer, Toll::ONE, &at(millis(1_000 + n)))).collect();
    assert!(answers[..20].iter().all(|answer| answer.verdict == Verdict::Admit));
    assert_eq!((answers[20].reason, answers[20].level), (Reason::Ceiling, 1));
    assert!(answers[21..].iter().all(|answer| answer.reason == Reason::InBackoff && answer.level == 1));
    assert_eq!(ask(&rule, &mut fresh(&rule), Toll::ONE, &at(millis(1_030))).verdict, Verdict::Admit);
}

#[test]
fn warmup_ends_on_time_and_the_limit_applies() {
    let rule = reconnect();
    let mut record = fresh(&rule);
    for n in 0..6 {
        assert_eq!(ask(&rule, &mut record, Toll::ONE, &at(millis(29_000 + n))).verdict, Verdict::Admit);
    }
    assert_eq!(ask(&rule, &mut record, Toll::ONE, &at(millis(30_000))).reason, Reason::OverLimit);
}

#[test]
fn warmup_leaves_no_debt_behind() {
    let rule =
        Rule { warmup: Some(Span::from_secs(30)), ..rule(Limit::Rate(Rate::new(1, Span::from_secs(1), 5).unwrap())) };
    let mut record = fresh(&rule);
    for _ in 0..1_000 {
        assert_eq!(ask(&rule, &mut record, Toll::ONE, &at(Moment::ZERO)).verdict, Verdict::Admit);
    }
    for _ in 0..5 {
        assert_eq!(ask(&rule, &mut record, Toll::ONE, &at(millis(30_000))).verdict, Verdict::Admit);
    }
}

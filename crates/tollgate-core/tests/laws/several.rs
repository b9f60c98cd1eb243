//! All rules are checked, then all or none are charged, and the strictest decides.

use proptest::prelude::*;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::limit::{Bucket, Limit, Rate};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

fn ask_all(rules: &[Rule], records: &mut [PlainRecord], toll: Toll, situation: &Situation) -> Decision {
    let mut claims: Vec<_> = rules
        .iter()
        .zip(&*records)
        .enumerate()
        .map(|(place, (rule, record))| Claim::new(place, rule, record.clone()))
        .collect();
    let decision = decide(&mut claims, toll, situation);
    for (record, claim) in records.iter_mut().zip(claims) {
        *record = claim.record;
    }
    decision
}

fn fresh_all(rules: &[Rule]) -> Vec<PlainRecord> {
    rules.iter().map(fresh).collect()
}

fn bucket(size: u32) -> Rule {
    rule(Limit::Bucket(Bucket::new(size, 1, Span::from_secs(1)).unwrap()))
}

proptest! {
    #[test]
    fn a_refusal_by_one_rule_spends_nothing_of_another(
        rules in prop::collection::vec(rules(), 1..5),
        arrivals in arrivals(),
    ) {
        let mut records = fresh_all(&rules);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let before: Vec<_> = rules.iter().zip(&records).map(|(rule, record)| rule.limit.info(record, now)).collect();
            if ask_all(&rules, &mut records, toll, &at(now)).verdict.is_refusal() {
                let after: Vec<_> = rules.iter().zip(&records).map(|(rule, record)| rule.limit.info(record, now)).collect();
                prop_assert_eq!(before, after);
            }
        }
    }

    #[test]
    fn the_strictest_decides(rules in prop::collection::vec(rules(), 1..5), arrivals in arrivals()) {
        let mut records = fresh_all(&rules);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let alone: Vec<_> = rules
                .iter()
                .zip(&records)
                .map(|(rule, record)| ask(rule, &mut record.clone(), toll, &at(now)).verdict)
                .collect();
            let together = ask_all(&rules, &mut records, toll, &at(now));
            prop_assert_eq!(Some(together.verdict), alone.iter().max().copied());
            prop_assert_eq!(alone[together.rule.unwrap()], together.verdict);
        }
    }

    #[test]
    fn a_rule_in_observe_mode_decides_the_same_and_admits(rule in rules(), arrivals in arrivals()) {
        let observing = Rule { mode: Mode::Observe, ..rule.clone() };
        let (mut enforced, mut observed) = (fresh(&rule), fresh(&rule));
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let enforcing = ask(&rule, &mut enforced, toll, &at(now));
            let watching = ask(&observing, &mut observed, toll, &at(now));
            prop_assert_eq!(&enforced, &observed);
            prop_assert_eq!(watching.verdict, Verdict::Admit);
            prop_assert_eq!(watching.reason == Reason::WouldRefuse, enforcing.verdict.is_refusal());
            prop_assert_eq!(watching.reason == Reason::WouldHold, matches!(enforcing.verdict, Verdict::Hold(_)));
        }
    }
}

#[test]
fn an_admission_reports_the_rule_with_the_least_quota_left() {
    let rules = [bucket(10), bucket(3), bucket(7)];
    let decision = ask_all(&rules, &mut fresh_all(&rules), Toll::ONE, &at(millis(1)));
    assert_eq!((decision.rule, decision.info.unwrap().remaining), (Some(1), 2));
    assert_eq!(decision.info.unwrap().clear, Span::from_secs(1));
}

#[test]
fn a_refusal_outweighs_a_hold_and_the_longer_wait_wins() {
    let rate = |period| Rule { hold_max: Span::from_secs(5), ..rule(Limit::Rate(Rate::new(1, period, 1).unwrap())) };
    let rules = [rate(Span::from_secs(2)), rate(Span::from_secs(60)), rate(Span::from_secs(9))];
    let mut records = fresh_all(&rules);
    assert_eq!(ask_all(&rules, &mut records, Toll::ONE, &at(Moment::ZERO)).verdict, Verdict::Admit);
    let decision = ask_all(&rules, &mut records, Toll::ONE, &at(Moment::ZERO));
    assert_eq!((decision.rule, decision.verdict), (Some(1), Verdict::Refuse(millis(60_000))));
    assert_eq!(decision.info.unwrap().reset, Span::from_secs(60));
}

#[test]
fn an_observed_refusal_does_not_stop_the_others_from_being_charged() {
    let rules = [Rule { mode: Mode::Observe, ..bucket(1) }, bucket(10)];
    let mut records = fresh_all(&rules);
    for _ in 0..3 {
        assert_eq!(ask_all(&rules, &mut records, Toll::ONE, &at(millis(1))).verdict, Verdict::Admit);
    }
    assert_eq!(rules[1].limit.info(&records[1], millis(1)).remaining, 7);
    assert_eq!(rules[0].limit.info(&records[0], millis(1)).remaining, 0);
}

#[test]
fn no_rule_is_no_limit() {
    let decision = ask_all(&[], &mut [], Toll::ONE, &at(millis(1)));
    assert_eq!((decision.verdict, decision.reason, decision.rule), (Verdict::Admit, Reason::NoRule, None));
}

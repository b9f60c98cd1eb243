//! A reload keeps the state of unchanged rules.

use tollgate_core::band::Band;
use tollgate_core::limit::{Bucket, Budget, Limit};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::table::{TableError, table_bytes_for, table_bytes_min};
use tollgate_gatekeeper::{BuildError, RuleError};

use crate::fixtures::*;

const NOW: Moment = Moment::from_millis(5);

#[test]
fn unchanged_rules_keep_their_state_at_any_index() {
    let old = limiter(vec![rule("kept", "identifier", bucket(1)), rule("gone", "identifier", bucket(9))], 4);
    assert!(admits(&old, "key", NOW));
    let kept = Rule { hold_max: Span::from_secs(9), ..rule("kept", "identifier", bucket(1)) };
    let new = old.succeeded_by(plan(vec![rule("new", "identifier", bucket(5)), kept], 4)).unwrap();
    let ask_kept = || new.decide_key(1, b"key", Toll::ONE, Band::Normal, || NOW).unwrap().0;
    assert!(ask_kept().is_refusal());
    assert!(admits(&new, "key", NOW), "a new rule knows nobody");
    // Both use the same state while the old limiter has requests left.
    assert!(admits(&old, "other", NOW));
    assert!(new.decide_key(1, b"other", Toll::ONE, Band::Normal, || NOW).unwrap().0.is_refusal());
}

#[test]
fn a_changed_limit_or_class_resets_the_state_and_a_changed_size_does_not() {
    let base = rule("rule", "identifier", bucket(1));
    let old = limiter(vec![base.clone()], 4);
    assert!(admits(&old, "key", NOW));
    for changed in [
        plan(vec![rule("rule", "identifier", bucket(2))], 4),
        plan(vec![rule("rule", "ip/32", bucket(1))], 4),
        plan(vec![rule("renamed", "identifier", bucket(1))], 4),
    ] {
        assert!(admits(&old.succeeded_by(changed).unwrap(), "key", NOW));
    }
    // Another rule in the file leaves less memory for this one, but its state stays.
    assert!(!admits(&old.succeeded_by(plan(vec![base], 5)).unwrap(), "key", NOW));
}

#[test]
fn tickets_of_the_old_limiter_are_settled_by_the_new_one() {
    let rules = vec![rule("gone", "identifier", in_flight(1)), rule("kept", "identifier", in_flight(1))];
    let old = limiter(rules.clone(), 1);
    let caller = Caller { name: "somebody", address: [0; 4] };
    let (_, ticket) = old.decide(&caller, Toll::ONE, Band::Normal, NOW);
    let new = old.succeeded_by(plan(rules[1..].to_vec(), 1)).unwrap();
    drop(old);
    assert!(!admits(&new, "somebody", NOW));
    new.settle(ticket, Toll::ONE, NOW);
    assert!(admits(&new, "somebody", NOW));
}

#[test]
fn a_reload_does_not_restart_the_warm_up() {
    let warm = Rule { warmup: Some(Span::from_secs(30)), ..rule("rule", "identifier", rate(1, 60, 1)) };
    let old = limiter(vec![warm.clone()], 1);
    let late = Moment::from_millis(40_000);
    let new = old.succeeded_by(Plan { started: late, ..plan(vec![warm], 1) }).unwrap();
    assert!(admits(&new, "key", late));
    assert!(!admits(&new, "key", late));
}

#[test]
fn names_of_throttled_callers_survive_a_reload() {
    let rules = vec![rule("rule", "identifier", bucket(1))];
    let old = limiter(rules.clone(), 1);
    let caller = Caller { name: "somebody", address: [0; 4] };
    for _ in 0..3 {
        let _ = old.decide(&caller, Toll::ONE, Band::Normal, NOW);
    }
    let new = old.succeeded_by(plan(vec![rule("first", "ip/32", bucket(7)), rules[0].clone()], 1)).unwrap();
    let [caller] = &new.throttled(|_| true, 5, NOW)[..] else { panic!("one name") };
    assert_eq!((caller.rule, caller.acts[1], &caller.key[..]), (1, 2, &b"somebody"[..]));
    // A removed rule has no throttled callers to show.
    assert!(old.succeeded_by(plan(vec![], 1)).unwrap().throttled(|_| true, 5, NOW).is_empty());
}

#[test]
fn a_failed_table_is_reported_with_its_rule_and_reason() {
    let small = rule("rule", "identifier", bucket(1));
    let bytes_min = table_bytes_min(&small);
    let plan = |bytes| Plan { rules: vec![(small.clone(), 1 << 20), (small.clone(), bytes)], ..plan(vec![], 1) };
    let no_limiter = |bytes| tollgate_gatekeeper::limiter::Limiter::new(plan(bytes)).err().unwrap();
    assert_eq!(
        no_limiter(bytes_min - 1),
        BuildError { rule: 1, cause: RuleError::Table(TableError::TooSmall { bytes_min }) }
    );
    assert_eq!(no_limiter(0).to_string(), "rule 2: a table for this rule needs at least 136 bytes");
    assert!(matches!(no_limiter(usize::MAX).cause, RuleError::Table(TableError::OutOfMemory { .. })));
    assert!(table_bytes_for(&small, 0) >= bytes_min);
}

/// This includes keys with aux bits: fractions of a nanosecond, and remaining drips.
#[test]
fn no_key_of_a_bucket_a_rate_or_a_budget_takes_more_than_32_bytes() {
    let second = Span::from_secs(1);
    let limits = [
        Limit::Bucket(Bucket::new(10, 1, second).unwrap()),
        Limit::Bucket(Bucket::new(10, 5, second).unwrap()),
        rate(1, 1, 10),
        rate(3, 1, 10),
        Limit::Budget(Budget::new(100_000, second).unwrap()),
        Limit::Budget(Budget::new(333_333, second).unwrap()),
    ];
    for limit in limits {
        let bytes = table_bytes_for(&rule("rule", "identifier", limit), 1_000_000);
        assert!(bytes <= 32_000_000, "{limit:?}: {bytes}");
    }
}

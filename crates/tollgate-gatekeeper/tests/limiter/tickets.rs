//! The reserved cost of a request is settled when it ends, even if its key was evicted.

use tollgate_core::band::Band;
use tollgate_core::decision::{Reason, Verdict};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::ticket::{RULES_AT_ONCE_MAX, Ticket};

use crate::fixtures::*;

const NOW: Moment = Moment::from_millis(5);

fn cpu(millis: u64) -> Toll {
    Toll::of_cpu(Span::from_millis(millis))
}

fn remaining(limiter: &Limiter, name: &str) -> u64 {
    let caller = Caller { name, address: [0; 4] };
    limiter.explain(&caller, Toll::ONE, Band::Normal, NOW)[0].info.unwrap().remaining
}

#[test]
fn the_cost_of_a_request_is_charged_at_its_end() {
    let limiter = one(budget(1_000), 1);
    let (verdict, ticket) = ask(&limiter, "key", cpu(100), NOW);
    assert_eq!(verdict, Verdict::Admit);
    assert_eq!(remaining(&limiter, "key"), 900);
    limiter.settle(ticket, cpu(250), NOW);
    assert_eq!(remaining(&limiter, "key"), 750);
    let (_, ticket) = ask(&limiter, "key", cpu(500), NOW);
    limiter.settle(ticket, cpu(50), NOW);
    assert_eq!(remaining(&limiter, "key"), 700);
}

#[test]
fn a_request_that_reserved_nothing_pays_when_it_ends() {
    let limiter = one(budget(1_000), 1);
    let (_, ticket) = ask(&limiter, "key", Toll::ONE, NOW);
    assert!(!ticket.is_empty());
    limiter.settle(ticket, cpu(400), NOW);
    assert_eq!(remaining(&limiter, "key"), 600);
}

#[test]
fn a_refunded_request_costs_nothing() {
    for limit in [budget(1_000), rate(1, 60, 10), bucket(10), in_flight(10)] {
        let limiter = one(limit, 1);
        let before = remaining(&limiter, "key");
        let (_, ticket) = ask(&limiter, "key", cpu(300), NOW);
        assert!(remaining(&limiter, "key") < before);
        limiter.refund(ticket, NOW);
        assert_eq!(remaining(&limiter, "key"), before);
    }
}

#[test]
fn a_refusal_has_nothing_to_settle() {
    let limiter = one(bucket(1), 1);
    let (_, admitted) = ask(&limiter, "key", Toll::ONE, NOW);
    let (verdict, refused) = ask(&limiter, "key", Toll::ONE, NOW);
    assert!(verdict.is_refusal() && refused.is_empty() && !admitted.is_empty());
    assert_eq!(admitted.toll, Toll::ONE);
    limiter.refund(refused, NOW);
    assert!(!admits(&limiter, "key", NOW));
    limiter.settle(Ticket::<1>::empty(), Toll::ONE, NOW);
}

#[test]
fn an_evicted_key_still_pays_and_gets_nothing_of_others() {
    let limiter = one(budget(1_000), 1);
    // Keys in hot slots stay until they are clear, so four others come first.
    for key in ["a", "b", "c", "d"] {
        let _ = ask(&limiter, key, cpu(900), NOW);
    }
    let (_, first) = ask(&limiter, "first", cpu(100), NOW);
    let (_, second) = ask(&limiter, "second", cpu(100), NOW);
    // Twenty keys with more debt evict both.
    for key in 0..20_u8 {
        let _ = ask(&limiter, [key], cpu(900), NOW);
    }
    assert!(limiter.table(0).unwrap().evicted >= 2);
    let overflow = remaining(&limiter, "somebody new");
    limiter.settle(first, cpu(0), NOW);
    assert_eq!(remaining(&limiter, "somebody new"), overflow, "the overflow record was refunded to one key");
    limiter.settle(second, cpu(900), NOW);
    assert!(remaining(&limiter, "second") <= overflow.saturating_sub(800));
}

#[test]
fn an_in_flight_slot_is_released_where_it_was_taken() {
    let limiter = one(in_flight(2), 1);
    // Seven keys have requests in flight and cannot be evicted: the eighth and ninth share the overflow
    // record.
    let tickets: Vec<_> = (0..7_u8).map(|key| ask(&limiter, [key], Toll::ONE, NOW).1).collect();
    let (eighth, eighth_ticket) = ask(&limiter, "eighth", Toll::ONE, NOW);
    let (ninth, ninth_ticket) = ask(&limiter, "ninth", Toll::ONE, NOW);
    assert_eq!((eighth, ninth), (Verdict::Admit, Verdict::Admit));
    assert_eq!(limiter.table(0).unwrap().shared, 2);
    assert_eq!(ask(&limiter, "tenth", Toll::ONE, NOW).0, Verdict::RefuseUntilRelease);
    // Slots are free again, but the keys stay in the overflow record while it is in use, because they cannot
    // be separated.
    tickets.into_iter().for_each(|ticket| limiter.settle(ticket, Toll::ONE, NOW));
    assert_eq!(ask(&limiter, "tenth", Toll::ONE, NOW).0, Verdict::RefuseUntilRelease);
    limiter.settle(eighth_ticket, Toll::ONE, NOW);
    limiter.settle(ninth_ticket, Toll::ONE, NOW);
    for key in ["eighth", "ninth", "tenth"] {
        assert_eq!(remaining(&limiter, key), 2);
        assert_eq!(ask(&limiter, key, Toll::ONE, NOW).0, Verdict::Admit);
    }
}

#[test]
fn rules_beyond_the_maximum_are_skipped_and_counted() {
    let rules: Vec<Rule> =
        (0..RULES_AT_ONCE_MAX + 3).map(|number| rule(&format!("rule {number}"), "identifier", bucket(5))).collect();
    let limiter = limiter(rules, 1);
    let caller = Caller { name: "somebody", address: [0; 4] };
    let (decision, ticket) = limiter.decide(&caller, Toll::ONE, Band::Normal, NOW);
    assert_eq!((decision.verdict, limiter.rules_passed_over()), (Verdict::Admit, 3));
    limiter.refund(ticket, NOW);
    assert!(limiter.explain(&caller, Toll::ONE, Band::Normal, NOW).iter().all(|d| d.info.unwrap().remaining == 5));
}

#[test]
fn a_rule_in_observe_mode_charges_and_admits() {
    let limiter = limiter(vec![Rule { mode: Mode::Observe, ..rule("watching", "identifier", bucket(1)) }], 1);
    let caller = Caller { name: "somebody", address: [0; 4] };
    let (first, _) = limiter.decide(&caller, Toll::ONE, Band::Normal, NOW);
    let (second, ticket) = limiter.decide(&caller, Toll::ONE, Band::Normal, NOW);
    assert_eq!((first.verdict, first.reason), (Verdict::Admit, Reason::WithinLimit));
    assert_eq!((second.verdict, second.reason), (Verdict::Admit, Reason::WouldRefuse));
    assert!(ticket.is_empty());
    assert_eq!(ask(&limiter, "somebody", Toll::ONE, NOW).0, Verdict::Admit);
}

#[test]
fn a_request_without_rules_is_admitted() {
    let limiter = limiter(vec![], 1);
    let caller = Caller { name: "somebody", address: [0; 4] };
    let (decision, ticket) = limiter.decide(&caller, Toll::ONE, Band::Critical, NOW);
    assert_eq!((decision.verdict, decision.reason, ticket.is_empty()), (Verdict::Admit, Reason::NoRule, true));
    assert!(limiter.decide_key(0, b"key", Toll::ONE, Band::Normal, || NOW).is_none());
}

//! Gates with some shared rules.

use core::time::Duration;
use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Reason};
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::shared::{Authority, Options, Share, SharedLimiter, SharedPlan};
use tollgate_gatekeeper::table::table_bytes_min;

use crate::fixtures::*;
use crate::redis_server::RedisServer;

pub(crate) struct Caller([u8; 4]);

impl Request for Caller {
    fn client(&self) -> Option<IpAddr> {
        Some(self.0.into())
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn target(&self) -> &[u8] {
        b"/"
    }
}

pub(crate) const CALLER: Caller = Caller([203, 0, 113, 7]);

/// A gate with local rules, followed by shared ones.
fn gate(url: &str, options: Options, own: &[Rule], shared: &[Rule]) -> SharedLimiter {
    leasing_gate(url, options, own, shared, None)
}

/// A gate that leases a part of all shared rules.
pub(crate) fn leasing_gate(
    url: &str,
    options: Options,
    own: &[Rule],
    shared: &[Rule],
    lease: Option<u32>,
) -> SharedLimiter {
    let rules = own.iter().chain(shared).map(|rule| (rule.clone(), table_bytes_min(rule)));
    let plan = Plan { rules: rules.collect(), started: Moment::ZERO, seed: Seed::random(), names_max: 16 };
    let share = |place| (place >= own.len()).then_some(Share { lease_millionths: lease, ..Share::default() });
    let shares: Vec<_> = (0..own.len() + shared.len()).map(share).collect();
    let plan = SharedPlan { plan, shares: &shares, prefix: "test:", domain: "default" };
    SharedLimiter::new(plan, open(url, options), Clock::start()).unwrap()
}

/// Sends a request that ends immediately.
async fn ask_gate(gate: &SharedLimiter) -> Decision {
    let (decision, ticket) = gate.decide(&CALLER, Toll::ONE, Band::Normal).await;
    gate.settle(ticket, Toll::ONE);
    decision
}

async fn admitted(gate: &SharedLimiter, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += usize::from(!ask_gate(gate).await.verdict.is_refusal());
    }
    admitted
}

#[tokio::test]
async fn gates_share_only_shared_rules() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (own, shared) = (rule("own", limit("drip-1", 8)), rule("shared", limit("drip-1", 10)));
    let gates: Vec<_> = (0..3)
        .map(|_| gate(&server.url(), PATIENT, core::slice::from_ref(&own), core::slice::from_ref(&shared)))
        .collect();
    assert_eq!(admitted(&gates[0], 20).await, 8);
    assert_eq!(ask_gate(&gates[0]).await.rule, Some(0));
    // Two are left of the shared rule, and all eight of the second gate's local one.
    assert_eq!(admitted(&gates[1], 20).await, 2);
    assert_eq!(ask_gate(&gates[1]).await.rule, Some(1));
    assert_eq!(admitted(&gates[2], 20).await, 0);
}

#[tokio::test]
async fn a_refusal_of_the_store_charges_no_local_rule() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let own = rule("own", limit("drip-1", 5));
    let narrow = rule("narrow", limit("drip-1", 2));
    let gate = gate(&server.url(), PATIENT, core::slice::from_ref(&own), core::slice::from_ref(&narrow));
    assert_eq!(admitted(&gate, 50).await, 2);
    server.command(&["FLUSHALL"]);
    assert_eq!(admitted(&gate, 50).await, 2);
    server.command(&["FLUSHALL"]);
    // Five of the local rule in total: a hundred refusals used none.
    assert_eq!(admitted(&gate, 50).await, 1);
}

#[tokio::test]
async fn without_the_store_known_callers_stay_known() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let shared = rule("shared", limit("drip-1", 5));
    let (first, second) = (
        gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared)),
        gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared)),
    );
    assert_eq!(admitted(&first, 10).await, 5);
    drop(server);
    assert_eq!(admitted(&first, 10).await, 0);
    // A gate that does not know the caller grants the full limit: during an outage the bound is the limit
    // times the number of gates.
    assert_eq!(admitted(&second, 10).await, 5);
    assert!(first.store().counts().unanswered() > 0);
}

/// One minute for the first violation.
fn escalation() -> Escalation {
    let twice = Multiplier::new(2_000).unwrap();
    Escalation::new((Span::from_secs(60), Span::from_secs(600)), 10, Span::from_secs(60), (twice, twice)).unwrap()
}

#[tokio::test]
async fn a_violation_at_one_gate_blocks_at_the_next() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let shared = Rule { escalation: Some(escalation()), ..rule("shared", limit("drip-1", 1)) };
    let gates: Vec<_> = (0..2).map(|_| gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared))).collect();
    assert_eq!(ask_gate(&gates[0]).await.reason, Reason::WithinLimit);
    assert_eq!(ask_gate(&gates[0]).await.reason, Reason::OverLimit);
    let decision = ask_gate(&gates[1]).await;
    assert_eq!((decision.reason, decision.level), (Reason::InBackoff, 1));
    // It still is without the store.
    drop(server);
    for gate in &gates {
        let decision = ask_gate(gate).await;
        assert_eq!((decision.reason, decision.level), (Reason::InBackoff, 1), "{:?}", gate.store().counts());
        assert!(gate.store().counts().unanswered() > 0);
    }
}

/// After an outage or a `FLUSHALL` a gate may know more than the store. A request that the store admits is no
/// violation.
#[tokio::test]
async fn an_admission_by_a_flushed_store_is_no_local_violation() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let shared = Rule { escalation: Some(escalation()), ..rule("shared", limit("drip-1", 2)) };
    let gate = gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared));
    assert_eq!(admitted(&gate, 2).await, 2);
    server.command(&["FLUSHALL"]);
    assert_eq!(admitted(&gate, 2).await, 2);
    drop(server);
    // This is the first violation that is punished.
    let decision = ask_gate(&gate).await;
    assert_eq!((decision.reason, decision.level), (Reason::OverLimit, 1), "{:?}", gate.store().counts());
}

#[tokio::test]
async fn a_cancelled_request_leaves_no_charge() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let own = rule("own", limit("in-flight", 1));
    let shared = rule("shared", limit("drip-1", 2));
    let gate = gate(&server.url(), PATIENT, core::slice::from_ref(&own), core::slice::from_ref(&shared));
    assert_eq!(admitted(&gate, 1).await, 1);
    server.signal("STOP");
    for _ in 0..5 {
        let asking = gate.decide(&CALLER, Toll::ONE, Band::Normal);
        assert!(tokio::time::timeout(Duration::from_millis(20), asking).await.is_err());
    }
    server.signal("CONT");
    // One is left of the shared rule: the five cancelled requests used it only until they were answered.
    eventually("it is given back", async || {
        let said = gate.explain(&CALLER, Toll::ONE, Band::Normal).await;
        gate.store().counts().given_back > 0 && said[1].decision.info.unwrap().remaining == 1
    })
    .await;
    assert_eq!(admitted(&gate, 5).await, 1, "{:?}", gate.store().counts());
}

#[tokio::test]
async fn leasing_gates_rarely_ask_and_together_keep_the_limit() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    for name in ["rate", "drip-1", "drip-5", "window"] {
        let shared = rule(name, limit(name, 1_000));
        let gates: Vec<_> = (0..3)
            .map(|_| leasing_gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared), Some(100_000)))
            .collect();
        let mut total = 0;
        for _ in 0..5 {
            for gate in &gates {
                total += admitted(gate, 250).await;
            }
        }
        let asked: u64 = gates.iter().map(|gate| gate.store().counts().answered).sum();
        // All except what some gates hold while others ask, and what they returned because this machine
        // stalled.
        let held = || gates.iter().map(SharedLimiter::leased).sum::<u64>();
        assert!(held() <= 300, "{name}: {} are held", held());
        eventually("nothing is lost, and nothing is there twice", async || {
            let before = held();
            let left = gates[0].explain(&CALLER, Toll::ONE, Band::Normal).await[0].decision.info.unwrap().remaining;
            before == held() && total as u64 + before + left == 1_000
        })
        .await;
        assert!(asked < 3_750, "{name}: asked {asked} times");
        let first: u64 = gates[0].store().counts().answered;
        assert!(first < 1_250, "{name}: the first gate asked {first} times for its share");
    }
}

#[tokio::test]
async fn the_unused_part_of_a_slice_is_returned() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let shared = rule("shared", limit("drip-1", 100));
    let leaser = leasing_gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared), Some(500_000));
    let other = gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared));
    assert_eq!(admitted(&leaser, 1).await, 1);
    let mut others = admitted(&other, 60).await;
    // Unless this machine stalled.
    assert!(others == 50 || leaser.leased() != 49, "{others}");
    eventually("what is left of it goes back", async || {
        others += admitted(&other, 60).await;
        leaser.leased() == 0 && others == 99
    })
    .await;
    assert_eq!(admitted(&other, 10).await, 0);
}

#[tokio::test]
async fn a_gate_that_stops_returns_its_slices() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let shared = rule("shared", limit("drip-1", 100));
    let leaser = leasing_gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared), Some(500_000));
    let other = gate(&server.url(), PATIENT, &[], core::slice::from_ref(&shared));
    assert_eq!(admitted(&leaser, 10).await, 10);
    drop(leaser);
    let mut others = 0;
    eventually("they are given back", async || {
        others += admitted(&other, 120).await;
        others == 90
    })
    .await;
    assert_eq!(admitted(&other, 10).await, 0);
}

#[tokio::test]
async fn a_request_that_another_rule_refuses_is_returned_to_its_slice() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (wide, narrow) = (rule("wide", limit("drip-1", 100)), rule("narrow", limit("drip-1", 4)));
    let gate = leasing_gate(&server.url(), PATIENT, &[], &[wide, narrow], Some(500_000));
    assert_eq!(admitted(&gate, 30).await, 4);
    assert_eq!(gate.leased(), 46);
}

#[tokio::test]
async fn an_explanation_comes_from_the_store_and_charges_nothing() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (own, shared) = (rule("own", limit("drip-1", 8)), rule("shared", limit("window", 3)));
    let gates: Vec<_> = (0..2)
        .map(|_| gate(&server.url(), PATIENT, core::slice::from_ref(&own), core::slice::from_ref(&shared)))
        .collect();
    assert_eq!(admitted(&gates[0], 2).await, 2);
    let said = async || {
        let said = gates[1].explain(&CALLER, Toll::ONE, Band::Normal).await;
        let said = said.iter().map(|said| (said.decision.rule, said.decision.info.unwrap().remaining, said.by));
        said.collect::<Vec<_>>()
    };
    for _ in 0..20 {
        // The second gate does not know the caller, but the store does.
        assert_eq!(said().await, [(Some(0), 8, Authority::Own), (Some(1), 1, Authority::Store)]);
    }
    assert_eq!(admitted(&gates[1], 5).await, 1);
    let refused = gates[1].explain(&CALLER, Toll::ONE, Band::Normal).await;
    assert!(refused[1].decision.verdict.is_refusal() && !refused[0].decision.verdict.is_refusal());

    // This gate does not know of the two that the store admitted elsewhere.
    drop(server);
    assert!(matches!(said().await[..], [(Some(0), 7, Authority::Own), (Some(1), 2, Authority::Instead(_))]));
}

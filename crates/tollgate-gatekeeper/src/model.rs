//! The limiter under a model checker: all orders, with at most two preemptions, in which two threads can access one
//! row.
//!
//! Run with `RUSTFLAGS="--cfg tollgate_model"`; rows then have two slots, and atomics are those of the
//! checker. The cfg is usually called `loom`. It has another name here because tokio would react to that one.

use loom::sync::Arc;
use loom::thread;
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Bucket, InFlight, Limit};
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::hash::Seed;
use crate::limiter::{Limiter, Plan};
use crate::table::table_bytes_min;
use crate::ticket::Ticket;

const NOW: Moment = Moment::from_millis(1);

struct Anybody;

impl Request for Anybody {
    fn client(&self) -> Option<core::net::IpAddr> {
        Some([203, 0, 113, 7].into())
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn target(&self) -> &[u8] {
        b"/"
    }
}

fn bucket(size: u32, drip: u32) -> Limit {
    Limit::Bucket(Bucket::new(size, drip, Span::from_secs(60)).unwrap())
}

/// A limiter with one row per rule.
fn limiter(limits: impl IntoIterator<Item = Limit>) -> Arc<Limiter> {
    let rule = |limit| Rule::new("rule", Class::parse("ip/32").unwrap(), limit);
    let rules = limits.into_iter().map(rule).map(|rule| (rule.clone(), table_bytes_min(&rule))).collect();
    Arc::new(Limiter::new(Plan { rules, started: Moment::ZERO, seed: Seed::fixed(1), names_max: 1 }).unwrap())
}

fn ask(limiter: &Limiter, key: &str) -> (Verdict, Ticket<1>) {
    limiter.decide_key(0, key.as_bytes(), Toll::ONE, Band::Normal, || NOW).unwrap()
}

fn admits(limiter: &Limiter, key: &str) -> bool {
    !ask(limiter, key).0.is_refusal()
}

/// Explores all interleavings of `one` and `other` with at most two preemptions on a limiter, and checks the result
/// with `judge`.
fn explore<A, B>(
    make: impl Fn() -> Arc<Limiter> + Send + Sync + 'static,
    one: fn(&Limiter) -> A,
    other: fn(&Limiter) -> B,
    judge: fn(&Limiter, A, B),
) where
    A: Send + 'static,
    B: Send + 'static,
{
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(move || {
        let limiter = make();
        let theirs = Arc::clone(&limiter);
        let thread = thread::spawn(move || other(&theirs));
        let one = one(&limiter);
        let other = thread.join().unwrap();
        judge(&limiter, one, other);
    });
}

#[test]
fn two_threads_on_a_new_key_with_room_for_one_admit_one() {
    explore(
        || limiter([bucket(1, 1)]),
        |limiter| admits(limiter, "key"),
        |limiter| admits(limiter, "key"),
        |_, one, other| assert!(one ^ other),
    );
}

#[test]
fn two_threads_on_a_known_key_with_room_for_one_admit_one() {
    let make = || {
        let limiter = limiter([bucket(2, 1)]);
        assert!(admits(&limiter, "key"));
        limiter
    };
    explore(
        make,
        |limiter| admits(limiter, "key"),
        |limiter| admits(limiter, "key"),
        |_, one, other| assert!(one ^ other),
    );
}

/// Both slots are taken by keys with debt. While a new key takes one of them, the evicted key tries again.
#[test]
fn a_key_that_is_evicted_during_a_request_gains_nothing() {
    let make = || {
        let limiter = limiter([bucket(1, 1)]);
        assert!(admits(&limiter, "first") && admits(&limiter, "second"));
        limiter
    };
    explore(
        make,
        |limiter| (admits(limiter, "first"), admits(limiter, "second")),
        |limiter| admits(limiter, "newcomer"),
        |limiter, again, _| {
            assert_eq!(again, (false, false));
            assert!(!admits(limiter, "first") && !admits(limiter, "second"));
        },
    );
}

#[test]
fn two_rules_are_charged_both_or_neither() {
    let decide = |limiter: &Limiter| limiter.decide(&Anybody, Toll::ONE, Band::Normal, NOW).0.verdict == Verdict::Admit;
    explore(
        || limiter([bucket(3, 1), bucket(1, 1)]),
        decide,
        decide,
        |limiter, one, other| {
            assert!(one ^ other);
            let said = limiter.explain(&Anybody, Toll::ONE, Band::Normal, NOW);
            let left: Vec<u64> = said.iter().map(|decision| decision.info.unwrap().remaining).collect();
            assert_eq!(left, [2, 0]);
        },
    );
}

/// A bucket with a drip of three has its count in two words, and a reader must not mix old and new ones.
#[test]
fn a_reader_sees_a_record_before_or_after_a_change() {
    let make = || {
        let limiter = limiter([bucket(4, 3)]);
        for _ in 0..3 {
            assert_eq!(limiter.decide(&Anybody, Toll::ONE, Band::Normal, NOW).0.verdict, Verdict::Admit);
        }
        limiter
    };
    explore(
        make,
        |limiter| {
            let look = Toll { count: 0, cpu: Span::ZERO };
            limiter.decide(&Anybody, look, Band::Normal, NOW).0.info.unwrap().remaining
        },
        |limiter| limiter.decide(&Anybody, Toll::ONE, Band::Normal, NOW).0.verdict,
        |_, remaining, verdict| {
            assert_eq!(verdict, Verdict::Admit);
            assert!(remaining <= 1, "{remaining} were left, of one");
        },
    );
}

#[test]
fn a_released_in_flight_slot_is_not_lost() {
    let make = || limiter([Limit::InFlight(InFlight::new(1).unwrap())]);
    let work = |limiter: &Limiter| {
        let (verdict, ticket) = ask(limiter, "key");
        limiter.settle(ticket, Toll::ONE, NOW);
        verdict == Verdict::Admit
    };
    explore(make, work, work, |limiter, one, other| {
        assert!(one || other);
        assert!(admits(limiter, "key") && !admits(limiter, "key"));
    });
}

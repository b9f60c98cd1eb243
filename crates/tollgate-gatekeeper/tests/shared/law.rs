//! Under continuous requests from several gates, a caller never gets more than its limit allows in any
//! stretch of time, and no less over the whole time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_core::band::Band;
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate, Window};
use tollgate_core::time::Span;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::shared::{Options, SharedLimiter, SharedRule, Store};

use crate::fixtures::*;
use crate::limiter::{CALLER, leasing_gate};
use crate::redis_server::RedisServer;

const GATES: usize = 3;
const TASKS: usize = 8;
/// A round that takes longer than this does not count as continuous.
const STANDSTILL: Duration = Duration::from_millis(500);

/// The duration of the test: `TOLLGATE_TEST_HAMMER_SECS`, or a short default.
fn duration() -> Duration {
    let secs = std::env::var("TOLLGATE_TEST_HAMMER_SECS").ok().and_then(|secs| secs.parse().ok());
    Duration::from_secs(secs.unwrap_or(12))
}

/// A limit, and the maximum that it admits in a stretch of this many seconds.
pub(crate) struct Law {
    pub(crate) name: &'static str,
    pub(crate) limit: Limit,
    pub(crate) most: fn(f64) -> f64,
}

pub(crate) fn laws() -> [Law; 6] {
    let bucket = |drip: u32| Limit::Bucket(Bucket::new(20, drip, Span::from_millis(100 * u64::from(drip))).unwrap());
    [
        Law {
            name: "rate",
            limit: Limit::Rate(Rate::new(10, Span::from_secs(1), 20).unwrap()),
            most: |secs| 20.0 + secs * 10.0,
        },
        // 10 ms each, and a key without debt is admitted: one more.
        Law {
            name: "budget",
            limit: Limit::Budget(Budget::new(100_000, Span::from_millis(200)).unwrap()),
            most: |secs| 21.0 + secs * 10.0,
        },
        Law { name: "drip-1", limit: bucket(1), most: |secs| 20.0 + secs * 10.0 },
        // Whole drips are returned at once, the last of them possibly just before the end.
        Law { name: "drip-2", limit: bucket(2), most: |secs| 22.0 + secs * 10.0 },
        Law { name: "drip-5", limit: bucket(5), most: |secs| 25.0 + secs * 10.0 },
        Law {
            name: "window",
            limit: Limit::Window(Window::new(20, Span::from_secs(2), None).unwrap()),
            most: |secs| 20.0 * (secs / 2.0).floor() + 20.0,
        },
    ]
}

/// The times at which each admitted request was sent and answered, in seconds from `start`, and the total
/// time of stalls.
async fn hammer(
    store: Store,
    rules: Arc<Vec<Arc<SharedRule>>>,
    start: Instant,
    end: Instant,
) -> (Vec<(usize, f64, f64)>, Duration) {
    let (mut admitted, mut still) = (Vec::new(), Duration::ZERO);
    while Instant::now() < end {
        let begun = Instant::now();
        for (which, rule) in rules.iter().enumerate() {
            let asked = start.elapsed().as_secs_f64();
            if ask(&store, &[(rule, b"key")]).await.unwrap().is_some() {
                admitted.push((which, asked, start.elapsed().as_secs_f64()));
            }
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
        still += if begun.elapsed() > STANDSTILL { begun.elapsed() } else { Duration::ZERO };
    }
    (admitted, still)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_requests_stay_within_the_limit() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let laws = laws();
    let rules: Arc<Vec<_>> = Arc::new(laws.iter().map(|law| shared(rule(law.name, law.limit))).collect());
    let start = Instant::now();
    let end = start + duration();
    let mut tasks = Vec::new();
    for _ in 0..GATES {
        let store = open(&server.url(), Options { waiting_max: 10_000, ..PATIENT });
        for _ in 0..TASKS {
            tasks.push(tokio::spawn(hammer(store.clone(), Arc::clone(&rules), start, end)));
        }
    }
    let (mut admitted, mut still) = (vec![Vec::new(); laws.len()], Duration::MAX);
    for task in tasks {
        let (times, still_for) = task.await.unwrap();
        still = still.min(still_for);
        for (which, asked, answered) in times {
            admitted[which].push((asked, answered));
        }
    }
    let secs = (duration() - still.min(duration())).as_secs_f64();
    for (law, admitted) in laws.iter().zip(&mut admitted) {
        assert_within(admitted, law.most, law.name);
        // Nothing is lost: requests are sent continuously, so the full quota is used.
        let least = (law.most)((secs - 2.0).max(0.0)) * 0.9 - 20.0;
        assert!(admitted.len() as f64 >= least, "{}: {} in {secs} s, less than {least}", law.name, admitted.len());
    }
}

/// Checks that no stretch of time has more admitted requests than `most` allows for its length.
///
/// A request was decided between its sending and its answer. Requests from the i-th on that were answered by
/// some time were therefore decided within the stretch from the i-th's sending to that time.
pub(crate) fn assert_within(admitted: &mut [(f64, f64)], most: impl Fn(f64) -> f64, name: &str) {
    admitted.sort_by(|one, other| one.0.total_cmp(&other.0));
    for first in 0..admitted.len() {
        let from = admitted[first].0;
        let mut answers: Vec<_> = admitted[first..].iter().map(|(_, answered)| *answered).collect();
        answers.sort_by(f64::total_cmp);
        for (index, answered) in answers.iter().enumerate() {
            let (count, most) = (index + 1, most(answered - from));
            assert!(count as f64 <= most + 1e-6, "{name}: {count} within {} s, {most} are allowed", answered - from);
        }
    }
}

/// A request is in flight at least from the answer to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_requests_never_exceed_the_in_flight_limit() {
    const MOST: u32 = 5;
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let rule = shared(rule("in-flight", Limit::InFlight(InFlight::new(MOST).unwrap())));
    let (in_flight, admitted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..GATES {
        let store = open(&server.url(), PATIENT);
        for _ in 0..TASKS {
            let (store, rule) = (store.clone(), Arc::clone(&rule));
            let (in_flight, admitted) = (Arc::clone(&in_flight), Arc::clone(&admitted));
            tasks.push(tokio::spawn(async move {
                // Every slot is reused when it is free.
                let is_enough =
                    || start.elapsed() > in_flight_duration() && admitted.load(Ordering::SeqCst) > 20 * MOST;
                while !is_enough() {
                    assert!(start.elapsed() < in_flight_duration() + LONG, "places are lost");
                    if let Some(ticket) = ask(&store, &[(&rule, b"key")]).await.unwrap() {
                        let others = in_flight.fetch_add(1, Ordering::SeqCst);
                        assert!(others < MOST, "{others} others are in flight");
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        drop(ticket);
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// A quarter, unless it is set.
fn in_flight_duration() -> Duration {
    if std::env::var_os("TOLLGATE_TEST_HAMMER_SECS").is_some() { duration() } else { duration() / 4 }
}

/// A caller may exceed its limit by at most the leased amount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_requests_with_leases_exceed_the_limit_by_at_most_the_leases() {
    const SLICE: u64 = 20;
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let limit = Limit::Rate(Rate::new(50, Span::from_secs(1), 100).unwrap());
    let gates: Vec<_> = (0..GATES)
        .map(|_| Arc::new(leasing_gate(&server.url(), PATIENT, &[], &[rule("leased", limit)], Some(200_000))))
        .collect();
    let (start, total) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for gate in &gates {
        for _ in 0..TASKS {
            tasks.push(tokio::spawn(hammer_gate(Arc::clone(gate), start, Arc::clone(&total))));
        }
    }
    let mut admitted = Vec::new();
    for task in tasks {
        let (times, leased) = task.await.unwrap();
        assert!(leased <= SLICE, "{leased} were shown as leased");
        admitted.extend(times);
    }
    let leased = (GATES as u64 * SLICE) as f64;
    assert_within(&mut admitted, |secs| 100.0 + secs * 50.0 + leased, "leased");
    let asked: u64 = gates.iter().map(|gate| gate.store().counts().answered).sum();
    assert!(asked > 0);
}

/// The times at which each admitted request was sent and answered, and the largest leased amount. It ends
/// when most of the quota is used.
async fn hammer_gate(gate: Arc<SharedLimiter>, start: Instant, total: Arc<AtomicU32>) -> (Vec<(f64, f64)>, u64) {
    let (mut admitted, mut leased) = (Vec::new(), 0);
    while start.elapsed() < Duration::from_secs(4) || total.load(Ordering::SeqCst) < 200 {
        assert!(start.elapsed() < LONG, "what there is is not given out");
        let asked = start.elapsed().as_secs_f64();
        let (decision, ticket) = gate.decide(&CALLER, Toll::ONE, Band::Normal).await;
        gate.settle(ticket, Toll::ONE);
        if !decision.verdict.is_refusal() {
            admitted.push((asked, start.elapsed().as_secs_f64()));
            total.fetch_add(1, Ordering::SeqCst);
        }
        leased = leased.max(gate.leased());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (admitted, leased)
}

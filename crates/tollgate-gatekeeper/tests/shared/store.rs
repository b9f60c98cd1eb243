//! Calls to a store: batched, bounded, and not sent for callers that are gone.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_gatekeeper::shared::{AskedRule, Options, SharedRule, Store, Unanswered};
use tollgate_test_support::free_port;

use crate::fixtures::*;
use crate::load::answers;
use crate::redis_server::RedisServer;

/// A store with one connection, once it answers.
async fn connected(server: &RedisServer, options: Options) -> (Store, Arc<SharedRule>) {
    let store = open(&server.url(), Options { connections: 1, ..options });
    let rule = shared(rule("rule", limit("drip-1", 1_000)));
    answers(&store, &rule).await;
    (store, rule)
}

/// Asks about all keys at once, from different tasks, and returns the results.
async fn ask_at_once(store: &Store, rule: &Arc<SharedRule>, keys: Vec<String>) -> Vec<Result<bool, Unanswered>> {
    let (store, rule) = (store.clone(), Arc::clone(rule));
    let asking = tokio::spawn(async move {
        let ask_one = |key: String| {
            let (store, rule) = (store.clone(), Arc::clone(&rule));
            tokio::spawn(async move { ask(&store, &[(&rule, key.as_bytes())]).await.map(|ticket| ticket.is_some()) })
        };
        let asking: Vec<_> = keys.into_iter().map(ask_one).collect();
        let mut outcomes = Vec::new();
        for asked in asking {
            outcomes.push(asked.await.unwrap());
        }
        outcomes
    });
    asking.await.unwrap()
}

/// This many requests of one caller.
fn one_caller(requests: usize) -> Vec<String> {
    vec!["key".to_owned(); requests]
}

/// A call wakes the connection task, on some runtimes before other callers run.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn concurrent_calls_are_sent_together() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = connected(&server, PATIENT).await;
    let before = store.counts();
    assert_eq!(ask_at_once(&store, &rule, one_caller(200)).await, [Ok(true); 200]);
    let (calls, pipelines) = (store.counts().calls - before.calls, store.counts().pipelines - before.pipelines);
    assert_eq!(calls, 200);
    assert!(pipelines <= 4, "{pipelines} for {calls} calls");
}

#[tokio::test]
async fn each_call_of_a_batch_gets_its_own_answer() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, _) = connected(&server, PATIENT).await;
    let narrow = shared(rule("narrow", limit("drip-1", 1)));
    let keys: Vec<_> = (0..200).map(|key: u32| key.to_string()).collect();
    let every_third = keys.iter().step_by(3).cloned().collect();
    assert!(ask_at_once(&store, &narrow, every_third).await.iter().all(|outcome| *outcome == Ok(true)));
    let expected: Vec<_> = (0..200).map(|key| Ok(key % 3 != 0)).collect();
    assert_eq!(ask_at_once(&store, &narrow, keys).await, expected);
}

#[tokio::test]
async fn waiting_calls_are_bounded_and_others_fail_immediately() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = connected(&server, Options { waiting_max: 4, ..PATIENT }).await;
    let outcomes = ask_at_once(&store, &rule, one_caller(50)).await;
    let of = |outcome| outcomes.iter().filter(|found| **found == outcome).count();
    assert_eq!((of(Ok(true)), of(Err(Unanswered::Busy))), (4, 46), "{outcomes:?}");
    assert_eq!(store.counts().busy, 46);
}

#[tokio::test]
async fn a_call_without_a_caller_is_not_sent() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let impatient = Options { deadline: Duration::from_millis(100), ..PATIENT };
    let (store, rule) = connected(&server, impatient).await;
    server.signal("STOP");
    let before = store.counts();
    // The first call is in flight while the server is paused; the others wait for it until their deadline.
    let first = tokio::spawn({
        let (store, rule) = (store.clone(), Arc::clone(&rule));
        async move { ask(&store, &[(&rule, b"first")]).await.map(drop) }
    });
    while store.counts().calls == before.calls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // If the machine stalls for half a second, the connection is closed first.
    let is_gone = |outcome: &Result<_, _>| matches!(outcome, Err(Unanswered::Late | Unanswered::Down));
    let outcomes = ask_at_once(&store, &rule, one_caller(20)).await;
    assert!(outcomes.iter().all(is_gone), "{outcomes:?}");
    assert!(matches!(first.await.unwrap(), Err(Unanswered::Late | Unanswered::Down)));
    server.signal("CONT");
    // The rest of the first is refunded, and new calls are answered.
    answers(&store, &rule).await;
    let counts = store.counts();
    let (answered, given_back) = (counts.answered - before.answered, counts.given_back - before.given_back);
    let unanswered = counts.unanswered() - before.unanswered() - 20;
    assert!(counts.calls - before.calls <= answered + given_back + unanswered, "{before:?}, {counts:?}");
}

#[tokio::test]
async fn no_call_exceeds_its_deadline_and_a_silent_connection_is_closed() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = connected(&server, Options { deadline: Duration::from_millis(100), ..PATIENT }).await;
    server.signal("STOP");
    // Otherwise it would wait forever.
    let asking = async { ask(&store, &[(&rule, b"key")]).await.map(drop) };
    let outcome = tokio::time::timeout(LONG, asking).await.expect("it ends by itself");
    // If the machine stalls for half a second, the connection is closed first.
    assert!(matches!(outcome, Err(Unanswered::Late | Unanswered::Down)), "{outcome:?}");
    // Another connection is tried and is silent, too.
    let begun = Instant::now();
    while store.health().connect_error().is_none() {
        assert!(begun.elapsed() < LONG, "the connection is kept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.signal("CONT");
    answers(&store, &rule).await;
}

#[tokio::test]
async fn no_call_waits_for_an_unreachable_store() {
    let _alone = ALONE.lock().await;
    let port = free_port();
    let store = open(&format!("redis://127.0.0.1:{port}"), Options { deadline: 10 * LONG, ..PATIENT });
    let rule = shared(rule("rule", limit("drip-1", 1_000)));
    for _ in 0..20 {
        let asking = async { ask(&store, &[(&rule, b"key")]).await.map(drop) };
        assert_eq!(tokio::time::timeout(LONG, asking).await.expect("it fails immediately"), Err(Unanswered::Down));
    }
    let _server = RedisServer::start_on(port, &[]);
    answers(&store, &rule).await;
}

#[tokio::test]
async fn a_forgotten_caller_has_its_full_quota_and_in_flight_requests_stay_counted() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let store = open(&server.url(), PATIENT);
    for name in LIMITS {
        let rule = shared(rule(name, limit(name, 2)));
        let asked = || vec![AskedRule::new(0, &rule, b"key")];
        assert_eq!(store.forget(asked(), &SITUATION).await, [(0, Ok(false))], "{name}: nothing is known yet");
        let mut in_flight = Vec::new();
        while let Some(ticket) = ask(&store, &[(&rule, b"key")]).await.unwrap() {
            in_flight.push(ticket);
        }
        assert_eq!(store.forget(asked(), &SITUATION).await, [(0, Ok(true))], "{name}");
        let has_room = ask(&store, &[(&rule, b"key")]).await.unwrap().is_some();
        assert_eq!(has_room, name != "in-flight", "{name}");
    }
}

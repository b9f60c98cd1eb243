//! Under any fault of the store, every request is decided in time, and afterwards the store decides again.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use tollgate_gatekeeper::shared::{Options, Unanswered};

use crate::fixtures::*;
use crate::load::*;
use crate::redis_server::{Cluster, RedisServer};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_delays_no_request_and_is_used_after_its_return() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let port = server.port();
    let (store, rule) = open_by_default(&server.url()).await;
    let load = Load::start(&store, &rule);
    drop(server);
    // The breaker spares most of them the wait.
    eventually("the breaker opens, and most calls fail immediately", async || {
        let counts = store.counts();
        store.health().gone() > 0.0 && counts.down > 500 && counts.down > counts.unanswered() / 2
    })
    .await;
    let _server = RedisServer::start_on(port, &[]);
    answers(&store, &rule).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0 && report.answered > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_paused_for_three_seconds_delays_no_request() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = open_by_default(&server.url()).await;
    let load = Load::start(&store, &rule);
    server.signal("STOP");
    tokio::time::sleep(3 * SECOND).await;
    eventually("somebody is not answered", async || store.counts().unanswered() > 0).await;
    server.signal("CONT");
    answers(&store, &rule).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_two_seconds_latency_delays_no_request() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&["--enable-debug-command", "local"]);
    let (store, rule) = open_by_default(&server.url()).await;
    let load = Load::start(&store, &rule);
    let counts = Arc::clone(store.health());
    let server = tokio::task::spawn_blocking(move || {
        // Once, unless this machine stalls.
        while counts.counts().unanswered() == 0 {
            server.command(&["DEBUG", "SLEEP", "2"]);
        }
        server
    })
    .await
    .unwrap();
    answers(&store, &rule).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert!(report.unanswered() > 0);
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_store_starts_again_and_misses_no_request() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let store = open(&server.url(), PATIENT);
    let rule = shared(rule("rule", limit("drip-1", 3)));
    for (forget, expected) in [(&["PING"][..], 3), (&["FLUSHALL"], 3), (&["SCRIPT", "FLUSH"], 0)] {
        server.command(forget);
        let mut admitted = 0;
        for _ in 0..10 {
            admitted += usize::from(ask(&store, &[(&rule, b"key")]).await.unwrap().is_some());
        }
        assert_eq!(admitted, expected, "after {forget:?}");
    }
    assert_eq!(store.counts().unanswered(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_fails_and_decides_again_with_room() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = open_by_default(&server.url()).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let load = Load::start(&store, &rule);
    tokio::time::sleep(SECOND).await;
    eventually("it says so", async || store.counts().failed > 0).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert_eq!(report.answered, 0);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    answers(&store, &rule).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_becomes_a_replica_is_disconnected() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, rule) = open_by_default(&server.url()).await;
    let connects = store.counts().connects;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let load = Load::start(&store, &rule);
    // The current master is asked, so a connection to a replica is not kept.
    eventually("it reconnects", async || store.counts().connects > connects).await;
    let report = load.stop().await;
    report.assert_in_time();
    assert_eq!(report.answered, 0);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    answers(&store, &rule).await;
}

#[tokio::test]
async fn foreign_values_are_left_unchanged_and_block_no_client() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let store = open(&server.url(), PATIENT);
    let mut foreign = 0;
    for name in LIMITS {
        let rule = shared(rule(name, limit(name, 1)));
        let slot = String::from_utf8(rule.slot(b"key")).unwrap();
        let ours = {
            let _at_work = ask(&store, &[(&rule, b"other")]).await.unwrap();
            let other = String::from_utf8(rule.slot(b"other")).unwrap();
            let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
            redis::cmd("GET").arg(other).query::<Vec<u8>>(&mut connection).unwrap()
        };
        let not_a_number = [&ours[..2], &f64::NAN.to_le_bytes(), &ours[10..]].concat();
        let cut = &ours[..ours.len() - 1];
        // A state of another kind of limit, and an invalid level and wait.
        let other_kind = [b"tz", &ours[2..]].concat();
        let is_log = ["window", "in-flight"].contains(&name);
        let head = if is_log { ours[..26].to_vec() } else { [&ours[..10], &[0; 16]].concat() };
        let with_level = |level: f64| [&head, &level.to_le_bytes()[..], &ours[if is_log { 34 } else { 10 }..]].concat();
        let too_high = with_level(9.1e15);
        for garbage in [b"".as_slice(), b"hello", &[0xff; 34], &[0xff; 58], &not_a_number, cut, &other_kind, &too_high]
        {
            let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
            redis::cmd("SET").arg(&slot).arg(garbage).exec(&mut connection).unwrap();
            assert_eq!(ask(&store, &[(&rule, b"key")]).await.unwrap_err(), Unanswered::Foreign, "{name}: {garbage:?}");
            let kept: Vec<u8> = redis::cmd("GET").arg(&slot).query(&mut connection).unwrap();
            assert_eq!(kept, garbage);
            foreign += 1;
        }
        // Only the level of that one was wrong.
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        redis::cmd("SET").arg(&slot).arg(with_level(255.0)).exec(&mut connection).unwrap();
        ask(&store, &[(&rule, b"key")]).await.unwrap();
        server.command(&["DEL", &slot]);
        server.command(&["LPUSH", &slot, "a", "list"]);
        assert_eq!(ask(&store, &[(&rule, b"key")]).await.unwrap_err(), Unanswered::Foreign, "{name}: a list");
        let together = [(&rule, b"another".as_slice()), (&rule, b"key")];
        assert_eq!(ask(&store, &together).await.unwrap_err(), Unanswered::Foreign, "{name}: a list among others");
        assert_eq!(server.command(&["LLEN", &slot]), "int(2)", "it is left alone");
        foreign += 2;
        server.command(&["DEL", &slot]);
        assert!(ask(&store, &[(&rule, b"key")]).await.unwrap().is_some());
    }
    assert_eq!(store.counts().foreign, foreign);
}

#[tokio::test]
async fn an_outage_blocks_no_additional_client() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    let (store, _) = open_by_default(&server.url()).await;
    let rule = shared(rule("rule", limit("rate", 1)));
    server.signal("STOP");
    // Requests while the server is paused. The script may still run for sent calls when the server continues.
    for key in 0..50_u32 {
        assert!(ask(&store, &[(&rule, &key.to_be_bytes())]).await.is_err());
    }
    server.signal("CONT");
    answers(&store, &shared(crate::fixtures::rule("probe", limit("drip-1", 1_000)))).await;
    // Charges without a waiting caller are refunded; the rule itself refills only tomorrow.
    let deadline = Instant::now() + LONG;
    for key in 0..50_u32 {
        while ask(&store, &[(&rule, &key.to_be_bytes())]).await.is_ok_and(|ticket| ticket.is_none()) {
            assert!(Instant::now() < deadline, "{key} is blocked: {:?}", store.counts());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The pause is longer than the store's connections wait for a reply, so no reply can lead to a refund.
async fn a_long_outage_blocks_no_additional_client(url: &str, servers: &[&RedisServer]) {
    let (store, _) = open_by_default(url).await;
    let rule = shared(rule("rule", limit("rate", 1)));
    // The store's clock is known from the replies about another rule.
    let keys = || (0..30_u32).map(u32::to_be_bytes);
    let other = shared(crate::fixtures::rule("other", limit("drip-1", 1_000)));
    for key in keys() {
        eventually("it answers", async || ask(&store, &[(&other, &key)]).await.is_ok()).await;
    }
    servers.iter().for_each(|server| server.signal("STOP"));
    let paused = Instant::now();
    while paused.elapsed() < 2 * SECOND {
        let asked = keys().map(|key| {
            let (store, rule) = (store.clone(), Arc::clone(&rule));
            tokio::spawn(async move { ask(&store, &[(&rule, &key)]).await.is_err() })
        });
        for is_unanswered in asked.collect::<Vec<_>>() {
            assert!(is_unanswered.await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The deadlines of the last calls pass.
    tokio::time::sleep(Duration::from_millis(300)).await;
    servers.iter().for_each(|server| server.signal("CONT"));
    for key in keys() {
        // The first answer counts: no refund is on its way.
        let mut answered = None;
        eventually("it answers again", async || {
            answered = ask(&store, &[(&rule, &key)]).await.ok();
            answered.is_some()
        })
        .await;
        assert!(answered.flatten().is_some(), "{key:?} is refused: {:?}", store.counts());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_were_given_up_in_an_outage_are_not_charged() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    a_long_outage_blocks_no_additional_client(&server.url(), &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_were_given_up_in_an_outage_of_a_cluster_are_not_charged() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start();
    a_long_outage_blocks_no_additional_client(&cluster.url(), &cluster.nodes.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn requests_in_flight_are_counted_until_any_kind_of_end() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    // Calls on one connection are executed in order.
    let store = open(&server.url(), Options { connections: 1, ..PATIENT });
    let rule = shared(rule("rule", limit("in-flight", 2)));
    for round in 0..3 {
        let first = ask(&store, &[(&rule, b"key")]).await.unwrap().expect("there is room");
        let second = ask(&store, &[(&rule, b"key")]).await.unwrap().expect("there is room");
        assert!(ask(&store, &[(&rule, b"key")]).await.unwrap().is_none());
        match round {
            0 => first.settle(TOLL),
            1 => first.refund(),
            _ => drop(first),
        }
        drop(second);
    }
    assert!(ask(&store, &[(&rule, b"key")]).await.unwrap().is_some());
}

#[tokio::test]
async fn the_end_of_a_request_is_sent_after_a_reconnection() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start(&[]);
    // Calls on one connection are executed in order.
    let store = open(&server.url(), Options { connections: 1, ..PATIENT });
    let rule = shared(rule("rule", limit("in-flight", 1)));
    let keys = || (0..50_u32).map(u32::to_be_bytes);
    let mut tickets = Vec::new();
    for key in keys() {
        tickets.push(ask(&store, &[(&rule, &key)]).await.unwrap().expect("there is room"));
    }
    // The server runs, but accepts no connection.
    server.command(&["ACL", "SETUSER", "default", "-script"]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("no connection can be made", async || {
        assert!(ask(&store, &[(&rule, b"another")]).await.is_err());
        store.health().connect_error().is_some()
    })
    .await;
    for ticket in tickets {
        drop(ticket);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.command(&["ACL", "SETUSER", "default", "+script"]);
    eventually("it decides again", async || ask(&store, &[(&rule, b"another")]).await.is_ok()).await;
    for key in keys() {
        assert!(ask(&store, &[(&rule, &key)]).await.unwrap().is_some(), "{key:?} counts as in flight");
    }
    assert_eq!(store.counts().unsettled, 0);
}

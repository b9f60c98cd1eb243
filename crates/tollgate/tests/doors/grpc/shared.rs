//! Limits in the format of envoyproxy/ratelimit with their state on Redis: exact across processes.

use std::net::SocketAddr;

use serde_json::json;
use tollgate_test_support::redis_server::RedisServer;

use super::{CONFIG, LIMITS, start_with};
use crate::support::{Doors, call};

fn start(redis: &RedisServer) -> (Doors, SocketAddr) {
    let shared = CONFIG.replace("[doors]", "[doors]\nratelimit_state = 'redis'");
    let config = format!("{shared}[redis]\nurl = 'redis://127.0.0.1:{}'\ndeadline = '2s'\n", redis.port());
    let mut doors = start_with(LIMITS, &config);
    let door = doors.door("http");
    (doors, door)
}

/// Asks about a client of the domain `shop`, which has two requests per minute. Returns the status.
fn ask(door: SocketAddr, client: &str, hits: u32) -> u16 {
    let descriptor = json!({"entries": [{"key": "client", "value": client}]});
    let body = json!({"domain": "shop", "descriptors": [descriptor], "hitsAddend": hits});
    call(door, "POST", "/json", &[], &body.to_string()).status
}

#[test]
fn a_limit_on_redis_is_one_limit_for_two_processes_and_survives_both() {
    let redis = RedisServer::start(&[]);
    let ((first, one), (second, two)) = (start(&redis), start(&redis));
    assert_eq!([ask(one, "a", 1), ask(two, "a", 1)], [200, 200]);
    assert_eq!([ask(one, "a", 1), ask(two, "a", 1)], [429, 429]);
    assert_eq!([ask(one, "b", 2), ask(two, "b", 1)], [200, 429], "another client has its own limit");
    assert_eq!(first.metric("tollgate_redis_decisions_total"), 3, "the metrics include other domains");
    drop((first, second));
    let (_third, three) = start(&redis);
    assert_eq!([ask(three, "a", 1), ask(three, "c", 1)], [429, 200], "the state is on Redis");
}

#[test]
fn concurrent_calls_of_two_processes_admit_exactly_the_limit() {
    let redis = RedisServer::start(&[]);
    let ((_first, one), (_second, two)) = (start(&redis), start(&redis));
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let door = if thread % 2 == 0 { one } else { two };
                scope.spawn(move || (0..5).filter(|_| ask(door, "a", 1) == 200).count())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 2);
}

//! Redis decides from the first request on, and rules configure the behaviour after the deadline.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::faults::fallbacks;
use crate::load::{alone, among_others};
use crate::support::{Backend, Gate};
use tollgate_test_support::free_port;
use tollgate_test_support::redis_server::RedisServer;

const BUCKET: &str =
    "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 25, drip = 1, every = '1h' }\n";

fn config(backend: &Backend, url: &str, redis: &str, rules: &str) -> String {
    format!("[gate]\nworkers = 2\nbackend = \"{}\"\n[redis]\nurl = \"{url}\"\n{redis}\n{rules}", backend.url())
}

/// A relay to `port` on which connecting and each reply take this much longer.
fn slow_way(port: u16, connecting: Duration, reply: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            spawn(move || {
                sleep(connecting);
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let carry = |mut from: TcpStream, mut to: TcpStream, delay: Duration| {
                    spawn(move || {
                        let mut bytes = [0; 65536];
                        while let Ok(length @ 1..) = from.read(&mut bytes) {
                            sleep(delay);
                            if to.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                };
                carry(client.try_clone().unwrap(), server.try_clone().unwrap(), Duration::ZERO);
                carry(server, client, reply);
            });
        }
    });
    address
}

#[test]
fn a_gate_listens_when_its_connections_to_redis_are_made() {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let way = slow_way(server.port(), Duration::from_millis(300), Duration::ZERO);
    let gate = Gate::start(&config(&backend, &format!("redis://{way}"), "", BUCKET));
    assert_eq!((gate.get("/").status, gate.metric("tollgate_redis_decisions_total")), (200, 1));
}

#[test]
fn a_gate_listens_without_redis_after_a_bounded_wait() {
    let _among_others = among_others();
    let backend = Backend::saying("ok");
    let begun = Instant::now();
    let gate = Gate::start(&config(&backend, &format!("redis://127.0.0.1:{}", free_port()), "", BUCKET));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    gate.logged("Redis cannot be reached");
    assert_eq!((gate.get("/").status, gate.admin("/readyz").status), (200, 200));
}

#[test]
fn two_gates_that_have_just_started_admit_together_what_the_limit_says() {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    // Every reply comes after the deadline, as on a busy machine. The rule waits for it.
    let way = slow_way(server.port(), Duration::ZERO, Duration::from_millis(120));
    let rule = format!("{BUCKET}on_timeout = 'wait'\n");
    let start = || Gate::start(&config(&backend, &format!("redis://{way}"), "wait = '60s'", &rule));
    let gates = &[start(), start()];
    let admitted: usize = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..600).map(|number| scope.spawn(move || gates[number % 2].get("/").status)).collect();
        asking.into_iter().map(|status| usize::from(status.join().unwrap() == 200)).sum()
    });
    assert_eq!(admitted, 25);
    assert_eq!(gates.iter().map(|gate| fallbacks(gate, "late")).sum::<u64>(), 0);
}

/// A gate whose Redis does not respond for this long from now on.
fn paused(on_timeout: &str, pause: Duration) -> (Gate, RedisServer) {
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let rule = format!("{BUCKET}on_timeout = '{on_timeout}'\nstatus = 418\n");
    let gate = Gate::start(&config(&backend, &server.url(), "deadline = '50ms'\nwait = '20s'", &rule));
    assert_eq!(gate.get("/").status, 200);
    server.command(&["CLIENT", "PAUSE", &pause.as_millis().to_string(), "ALL"]);
    (gate, server)
}

#[test]
fn a_rule_may_wait_for_longer_than_the_deadline() {
    let _alone = alone();
    let (gate, _server) = paused("wait", Duration::from_millis(400));
    let begun = Instant::now();
    assert_eq!(gate.get("/").status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    assert_eq!((gate.metric("tollgate_redis_decisions_total"), fallbacks(&gate, "late")), (2, 0));
}

#[test]
fn a_rule_may_refuse_after_the_deadline() {
    let _alone = alone();
    let (gate, _server) = paused("refuse", Duration::from_millis(2_000));
    let refused = gate.get("/");
    assert_eq!(refused.status, 503, "a rule's own status is for clients over its limit");
    assert!(refused.field("retry-after").is_some_and(|secs| ["1", "2"].contains(&secs)));
    assert_eq!(refused.field("ratelimit"), None);
    let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(problem.get("violated-policies"), None);
    crate::support::eventually("Redis decides again", || gate.get("/").status == 200);
}

#[test]
fn by_default_the_gate_decides_after_the_deadline() {
    let _alone = alone();
    let (gate, _server) = paused("local", Duration::from_millis(2_000));
    assert_eq!(gate.get("/").status, 200);
    assert_eq!(fallbacks(&gate, "late"), 1);
}

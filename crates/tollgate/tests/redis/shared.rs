//! Several gates, one limit.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::load::among_others;
use crate::support::{Backend, Gate, backend::respond, eventually, roundtrip};
use tollgate_test_support::redis_server::RedisServer;

/// A gate with this server and a deadline that is long enough for a busy machine.
pub(crate) fn gate(backend: &Backend, server: &RedisServer, rules: &str) -> Gate {
    Gate::start(&config(backend, server, rules))
}

pub(crate) fn config(backend: &Backend, server: &RedisServer, rules: &str) -> String {
    format!(
        "[gate]\nworkers = 2\nbackend = \"{}\"\n[redis]\nurl = \"{}\"\ndeadline = '60s'\n{rules}",
        backend.url(),
        server.url()
    )
}

/// Waits until the gate is connected.
pub(crate) fn connected(gate: &Gate) {
    eventually("the gate is connected to Redis", || gate.metric("tollgate_redis_connects_total") > 0);
}

const BUCKET: &str =
    "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 7, drip = 1, every = '1h' }\n";

/// The number of admitted requests out of this many, sent over separate connections, several at a time.
fn admitted(gate: &Gate, count: usize) -> usize {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| gate.get("/").status)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|status| *status == 200).count()
    })
}

#[test]
fn two_gates_admit_together_what_the_limit_says() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let gates = [gate(&backend, &server, BUCKET), gate(&backend, &server, BUCKET)];
    gates.iter().for_each(connected);
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = gates.iter().map(|gate| scope.spawn(|| admitted(gate, 20))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(counts.iter().sum::<usize>(), 7, "{counts:?}");
    assert_eq!(backend.requests().len(), 7);
}

/// The statuses of this many requests, one after the other.
fn statuses(gate: &Gate, count: usize) -> Vec<u16> {
    (0..count).map(|_| gate.get("/").status).collect()
}

#[test]
fn every_kind_of_limit_is_shared() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    for limit in [
        "rate = { rate = '1/h', burst = 3 }\nhold = '0s'",
        "window = { max = 3, per = '1h' }",
        "legacy = { max = 3, duration = '1h' }",
        "bucket = { size = 3, drip = 2, every = '1h' }",
    ] {
        server.command(&["FLUSHALL"]);
        let rule = format!("[[rule]]\nname = 'r'\nclass = 'ip/32'\nstate = 'redis'\n{limit}\n");
        let gates = [gate(&backend, &server, &rule), gate(&backend, &server, &rule)];
        gates.iter().for_each(connected);
        assert_eq!(statuses(&gates[0], 2), [200, 200], "{limit}");
        assert_eq!(statuses(&gates[1], 2), [200, 429], "{limit}");
        assert_eq!(statuses(&gates[0], 1), [429], "{limit}");
    }
}

#[test]
fn requests_in_flight_at_one_gate_count_at_the_other_until_they_end() {
    let _among_others = among_others();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let backend = Backend::answering(move |request, stream| {
        if request.path() == "/slow" {
            gone.lock().unwrap().recv().unwrap();
        }
        respond(stream, "ok")
    });
    let server = RedisServer::start(&[]);
    let rule = "[[rule]]\nname = 'r'\nclass = 'ip/32'\nstate = 'redis'\nin_flight = 1\n";
    let gates = [gate(&backend, &server, rule), gate(&backend, &server, rule)];
    gates.iter().for_each(connected);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| gates[0].get("/slow").status);
        eventually("it is at the backend", || !backend.requests().is_empty());
        assert_eq!(statuses(&gates[1], 2), [429, 429]);
        go.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), 200);
    });
    eventually("its end is known at the other gate", || gates[1].get("/").status == 200);
}

#[test]
fn the_actual_cost_of_a_request_is_charged_at_the_other_gate_too() {
    let _among_others = among_others();
    let backend = Backend::answering(|_, stream| {
        use std::io::Write;
        std::thread::sleep(Duration::from_millis(60));
        stream.write_all(b"HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur=50\r\nContent-Length: 0\r\n\r\n")
    });
    let server = RedisServer::start(&[]);
    // 30 s of credit at a millionth of a core: 50 ms use it up, and it returns in days.
    let rule = "[[rule]]\nname = 'r'\nclass = 'ip/32'\nstate = 'redis'\nhold = '0s'\nbudget = { cores = 0.000001, burst = '40ms' }\n";
    let gates = [gate(&backend, &server, rule), gate(&backend, &server, rule)];
    gates.iter().for_each(connected);
    assert_eq!(statuses(&gates[0], 1), [200]);
    eventually("the cost is known at the other gate", || gates[1].get("/").status == 429);
}

#[test]
fn a_client_in_backoff_at_one_gate_is_not_fresh_at_the_next() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let rule = "[[rule]]\nname = 'r'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 1, drip = 1, every = '1s' }\n\
                escalation = { backoff = '60s', backoff_max = '600s', levels = 5, release = '60s' }\n";
    let gates = [gate(&backend, &server, rule), gate(&backend, &server, rule)];
    gates.iter().for_each(connected);
    assert_eq!(statuses(&gates[0], 2), [200, 429]);
    // The bucket has room after a second; the block has not ended.
    std::thread::sleep(Duration::from_millis(1_200));
    let refused = gates[1].get("/");
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((55..=75).contains(&wait), "{wait}");
    eventually("the log says why", || {
        gates[1].log().iter().any(|line| line.contains("in-backoff") && line.contains("\"escalation_level\":1"))
    });
}

#[test]
fn a_request_that_one_rule_refuses_is_not_charged_by_any_other() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let rule = |name: &str, state: &str, path: &str, size: u32| {
        format!(
            "[[rule]]\nname = '{name}'\nwhen = {{ path = '{path}' }}\nclass = 'ip/32'\nstate = '{state}'\n\
             bucket = {{ size = {size}, drip = 1, every = '1h' }}\n"
        )
    };
    let rules = [
        rule("local-all", "local", "*", 5),
        rule("redis-all", "redis", "*", 6),
        rule("local-some", "local", "/a", 1),
        rule("redis-some", "redis", "/b", 1),
    ];
    let gate = gate(&backend, &server, &rules.concat());
    connected(&gate);
    let count = |path: &str, tries: usize| (0..tries).filter(|_| gate.get(path).status == 200).count();
    assert_eq!((count("/a", 20), count("/b", 20)), (1, 1));
    // Of the five and six, two were used, and thirty-eight refusals used none.
    assert_eq!(count("/", 20), 3);
}

/// The response of the admin address.
fn post(gate: &Gate, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let response = roundtrip(TcpStream::connect(gate.admin).unwrap(), request.as_bytes());
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

#[test]
fn explain_shows_the_state_on_redis_and_the_gates_own_while_redis_is_down() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let local = "[[rule]]\nname = 'own'\nclass = 'ip/32'\nbucket = { size = 9, drip = 1, every = '1h' }\n";
    let rules = format!("{BUCKET}{local}");
    let gates = [gate(&backend, &server, &rules), gate(&backend, &server, &rules)];
    gates.iter().for_each(connected);
    assert_eq!(statuses(&gates[0], 8), [200, 200, 200, 200, 200, 200, 200, 429]);
    // The other gate has no local state for the client; Redis has it.
    let words = |answer: &serde_json::Value| {
        let words = |rule: &serde_json::Value| {
            ["rule", "decision", "remaining", "by", "redis_unanswered"].map(|word| rule[word].clone())
        };
        answer["rules"].as_array().unwrap().iter().map(words).collect::<Vec<_>>()
    };
    let said = || words(&post(&gates[1], "/api/v1/explain", &json!({ "client": "127.0.0.1" })).1);
    let page = || {
        let page = gates[1].admin("/api/v1/key?class=ip/32&key=127.0.0.1/32");
        words(&serde_json::from_slice(&page.body).unwrap())
    };
    let (api, own) = (json!(["api", "refuse", 0, "redis", null]), json!(["own", "admit", 9, "gate", null]));
    for _ in 0..3 {
        assert_eq!((json!(said()), json!(page())), (json!([api, own]), json!([api, own])));
    }

    // An operator clears the key at one gate, for all of them.
    let (status, cleared) =
        post(&gates[1], "/api/v1/key/clear", &json!({ "class": "ip/32", "key": "127.0.0.1/32", "note": "sorry" }));
    assert_eq!((status, &cleared["rules"]), (200, &json!(1)));
    assert_eq!(said()[0], [json!("api"), json!("admit"), json!(7), json!("redis"), json!(null)]);
    assert_eq!(statuses(&gates[1], 2), [200, 200]);

    drop(server);
    let is_own = |said: Vec<[serde_json::Value; 5]>| said[0][3] == "gate" && said[0][4].is_string();
    eventually("the gate says that it speaks for Redis", || is_own(said()) && is_own(page()));
    let (status, _) =
        post(&gates[1], "/api/v1/key/clear", &json!({ "class": "ip/32", "key": "127.0.0.1/32", "note": "again" }));
    assert_eq!(status, 503);
}

#[test]
fn a_reload_keeps_state_and_connection_and_a_changed_address_is_followed() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let gate = gate(&backend, &server, BUCKET);
    connected(&gate);
    assert_eq!(statuses(&gate, 5), [200; 5]);
    let connects = gate.metric("tollgate_redis_connects_total");
    let slower = format!("{BUCKET}status = 503\nhold = '1s'\n");
    gate.rewrite(&config(&backend, &server, &slower));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    assert_eq!(statuses(&gate, 3), [200, 200, 503]);
    assert_eq!(gate.metric("tollgate_redis_connects_total"), connects);
    assert_eq!(gate.metric("tollgate_redis_decisions_total"), 8);

    let other = RedisServer::start(&[]);
    gate.rewrite(&config(&backend, &other, &slower));
    gate.signal("HUP");
    eventually("the other server decides", || !other.keys("tollgate:*").is_empty() || gate.get("/").status == 0);
}

#[test]
fn a_gate_starts_without_redis_and_decides_alone_until_it_is_up() {
    let _among_others = among_others();
    let (backend, port) = (Backend::saying("ok"), tollgate_test_support::free_port());
    let config = format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\n[redis]\nurl = \"redis://127.0.0.1:{port}\"\n{BUCKET}",
        backend.url()
    );
    let gate = Gate::start(&config);
    assert_eq!(statuses(&gate, 10).iter().filter(|status| **status == 200).count(), 7);
    gate.logged("Redis has not decided");
    let server = RedisServer::start_on(port, &[]);
    eventually("Redis decides", || {
        gate.get("/");
        !server.keys("tollgate:*").is_empty()
    });
}

#[test]
fn a_gate_that_stops_returns_its_leases() {
    let _among_others = among_others();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let leased = "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nlease = 0.5\nbucket = { size = 20, drip = 1, every = '1h' }\n";
    let first = gate(&backend, &server, leased);
    connected(&first);
    assert_eq!(first.get("/").status, 200);
    assert_eq!((first.metric("tollgate_redis_leased"), first.metric("tollgate_redis_calls_total")), (9, 1));
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0));
    let second = gate(&backend, &server, leased);
    connected(&second);
    assert_eq!(statuses(&second, 30).iter().filter(|status| **status == 200).count(), 19);
}

#[test]
fn a_password_is_not_in_the_log() {
    let _among_others = among_others();
    let backend = Backend::saying("ok");
    let config = format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\n[redis]\nurl = \"redis://user:hush@127.0.0.1:1\"\n{BUCKET}",
        backend.url()
    );
    let gate = Gate::start(&config);
    gate.get("/");
    gate.logged("Redis has not decided");
    assert!(!gate.log().concat().contains("hush"));
}

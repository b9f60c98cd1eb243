//! Observe mode: every request is forwarded at once, and the decisions are counted and logged.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::backend::respond;
use crate::support::{Backend, Gate, eventually, read_response};

const BUCKET: &str = "[[rule]]\nname = 'api'\nclass = 'ip/32'\nbucket = { size = 2, drip = 1, every = '100s' }\n";
const RATE: &str = "[[rule]]\nname = 'calm'\nclass = 'ip/32'\nrate = { rate = '1/s', burst = 1 }\n";

fn config(backend: &Backend, mode: &str, rules: &str) -> String {
    let (url, hold) = (backend.url(), "{ max = '10s', total = 1 }");
    format!("[gate]\nmode = '{mode}'\nworkers = 1\nin_flight = 1\nhold = {hold}\nbackend = '{url}'\n{rules}")
}

/// A backend that responds to one request for each message on the channel.
fn waiting_backend() -> (Backend, Sender<()>) {
    let (answers, waits): (Sender<()>, Receiver<()>) = channel();
    let waits = Arc::new(Mutex::new(waits));
    let backend = Backend::answering(move |_, stream| {
        waits.lock().unwrap().recv().unwrap();
        respond(stream, "ok")
    });
    (backend, answers)
}

fn send(gate: &Gate) -> TcpStream {
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

fn status(gate: &Gate) -> Value {
    serde_json::from_slice(&gate.admin("/api/v1/status").body).unwrap()
}

fn doctor(gate: &Gate, arguments: &[&str]) -> String {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    doctor.args(["doctor", "--admin", &format!("http://{}", gate.admin)]).args(arguments).env_remove("TOLLGATE_TOKEN");
    String::from_utf8(doctor.output().unwrap().stdout).unwrap()
}

fn verdicts(gate: Gate, reason: &str) -> Vec<String> {
    let lines: Vec<Value> = gate.end().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_reason = lines.iter().filter(|line| line["reason"] == reason);
    of_reason.map(|line| line["verdict"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn in_observe_mode_the_queue_only_reports_its_decisions() {
    let (backend, answers) = waiting_backend();
    let gate = Gate::start(&config(&backend, "observe", ""));
    let clients: Vec<_> = (0..4).map(|_| send(&gate)).collect();
    eventually("all four are at the backend", || backend.count() == 4);
    assert_eq!(gate.metric("tollgate_observing"), 1);
    assert_eq!(gate.metric("tollgate_requests_observed_total"), 4);
    assert_eq!(gate.metric("tollgate_queue_would_hold_total"), 1);
    assert_eq!(gate.metric("tollgate_queue_would_refuse_total"), 2);
    let key: Value = serde_json::from_slice(&gate.admin("/api/v1/key?class=ip/32&key=127.0.0.1/32").body).unwrap();
    let queue = &key["queue"];
    assert_eq!((&queue["decision"], &queue["reason"]), (&"refuse".into(), &"queue-full".into()), "{key}");
    assert_eq!((&queue["observed"], &queue["allowed"], &queue["in_force"]), (&1.into(), &1.into(), &false.into()));
    (0..4).for_each(|_| answers.send(()).unwrap());
    for client in clients {
        assert_eq!(read_response(&mut BufReader::new(client)).unwrap().status, 200);
    }
    let shown = status(&gate);
    assert_eq!((&shown["mode"], &shown["requests"]["refused"]), (&"observe".into(), &0.into()));
    let observed = &shown["observed"];
    assert_eq!(
        (&observed["requests"], &observed["would_hold"], &observed["would_refuse"]),
        (&4.into(), &1.into(), &2.into())
    );
    let client = serde_json::json!({ "key": "127.0.0.1/32", "would_hold": 1, "would_refuse": 2 });
    eventually("the client is named", || status(&gate)["observed"]["clients"] == serde_json::json!([client]));
    let table = doctor(&gate, &["--once"]);
    let summary = "observe mode: of 4 requests the gate would have held 1 (25.0 %), refused 2 (50.0 %): 127.0.0.1/32 (1 held, 2 refused)";
    assert_eq!(table.lines().next(), Some(summary), "{table}");
    assert_eq!(gate.metric("tollgate_queue_turned_away_total"), 0);
    assert_eq!(verdicts(gate, "queue-full"), ["would-refuse", "would-refuse"]);
}

#[test]
fn in_observe_mode_rules_only_count_their_decisions() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config(&backend, "observe", BUCKET));
    assert!((0..5).all(|_| gate.get("/").status == 200));
    let shown = status(&gate);
    let rule = &shown["rules"][0];
    assert_eq!((&rule["refused"], &rule["would_refuse"]), (&0.into(), &3.into()), "{shown}");
    assert_eq!(shown["observed"]["would_refuse"], 3);
    assert!(verdicts(gate, "would-refuse").iter().all(|verdict| verdict == "would-refuse"));
    let gate = Gate::start(&config(&backend, "observe", RATE));
    let began = Instant::now();
    assert!((0..4).all(|_| gate.get("/").status == 200));
    assert!(began.elapsed() < Duration::from_secs(1), "no request is held");
    assert_eq!(status(&gate)["rules"][0]["would_hold"], 3);
}

/// Otherwise more than all requests would have been held or refused.
#[test]
fn in_observe_mode_the_queue_does_not_judge_what_a_rule_would_have_refused() {
    let (backend, answers) = waiting_backend();
    let trial = "[[rule]]\nname = 'trial'\nmode = 'observe'\nclass = 'ip/32'\nwindow = { max = 1, per = '60s' }\n";
    // If the gate enforced, the trial would refuse nothing.
    for (rules, held, refused, by_queue) in [(BUCKET, 1, 2, 0), (trial, 1, 2, 2)] {
        let gate = Gate::start(&config(&backend, "observe", rules));
        let before = backend.count();
        let clients: Vec<_> = (1..=4)
            .map(|number| {
                let client = send(&gate);
                eventually("it is at the backend", || backend.count() == before + number);
                client
            })
            .collect();
        let observed = &status(&gate)["observed"];
        let counts =
            ["requests", "would_hold", "would_refuse", "queue_would_refuse"].map(|name| observed[name].clone());
        assert_eq!(counts, [4, held, refused, by_queue], "{observed}");
        (0..4).for_each(|_| answers.send(()).unwrap());
        for client in clients {
            assert_eq!(read_response(&mut BufReader::new(client)).unwrap().status, 200);
        }
    }
}

#[test]
fn a_reload_to_observe_mode_releases_waiting_requests() {
    let (backend, answers) = waiting_backend();
    let gate = Gate::start(&config(&backend, "enforce", BUCKET));
    let first = send(&gate);
    eventually("the first is at the backend", || backend.count() == 1);
    let second = send(&gate);
    eventually("the second waits", || status(&gate)["requests"]["waiting"] == 1);
    gate.rewrite(&config(&backend, "observe", BUCKET));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    eventually("the second is at the backend", || backend.count() == 2);
    let third = send(&gate);
    eventually("the third passes the rule", || backend.count() == 3);
    gate.rewrite(&config(&backend, "enforce", BUCKET));
    gate.signal("HUP");
    eventually("the gate enforces again", || status(&gate)["mode"] == "enforce");
    assert_eq!(gate.get("/").status, 429);
    (0..3).for_each(|_| answers.send(()).unwrap());
    for client in [first, second, third] {
        assert_eq!(read_response(&mut BufReader::new(client)).unwrap().status, 200);
    }
    eventually("nothing is left in the queue", || status(&gate)["requests"]["in_flight"] == 0);
}

/// An operator who tries a rule must not read that clients were refused.
#[test]
fn a_rule_in_observe_mode_is_counted_apart_from_refusals() {
    let backend = Backend::saying("ok");
    let observing = BUCKET.replace("[[rule]]", "[[rule]]\nmode = 'observe'");
    let gate = Gate::start(&config(&backend, "enforce", &observing));
    assert!((0..5).all(|_| gate.get("/").status == 200));
    let key = || serde_json::from_slice::<Value>(&gate.admin("/api/v1/key?class=ip/32&key=127.0.0.1/32").body).unwrap();
    eventually("all five are counted", || key()["bucket"]["requests"] == 5);
    let bucket = &key()["bucket"];
    assert_eq!((&bucket["refused"], &bucket["would_refuse"]), (&0.into(), &3.into()), "{bucket}");
    let page = doctor(&gate, &["--key", "127.0.0.1"]);
    assert!(page.contains("         refused  0\nwould be refused  3\n"), "{page}");
    assert!(page.contains("  3 x  rule api: only observed, 3 of 2, "), "{page}");
    let table = doctor(&gate, &["--once"]);
    assert!(
        table.contains("| Refused | Observed |") && table.contains("|       0 |        3 | 127.0.0.1/32 |"),
        "{table}"
    );
}

//! The log lines about held and refused requests.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use crate::support::backend::respond;
use crate::support::{Backend, Gate, eventually, read_response, roundtrip};

fn gate(backend: &Backend, rules: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{rules}", backend.url()))
}

/// Stops the gate, so that all counts are written, and returns the engagements of its log.
fn engagements(gate: Gate) -> Vec<Value> {
    let lines = gate.end();
    lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| !line["verdict"].is_null())
        .collect()
}

#[test]
fn the_first_refusal_is_one_log_line_and_the_following_are_summarized_in_another() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'login'\nclass = 'ip/32'\nbucket = { size = 2, drip = 1, every = '100s' }\n";
    let gate = gate(&backend, rule);
    assert!(gate.log().iter().all(|line| !line.contains("verdict")));
    for _ in 0..42 {
        gate.get("/");
    }
    let first: Value = serde_json::from_str(&gate.logged("refused ip/32 127.0.0.1/32 by login")).unwrap();
    let field = |name: &str| first[name].clone();
    assert_eq!([field("verdict"), field("rule"), field("class")], ["refuse", "login", "ip/32"]);
    assert_eq!([field("key"), field("reason"), field("band")], ["127.0.0.1/32", "over-limit", "normal"]);
    assert_eq!([field("observed"), field("allowed"), field("escalation_level"), field("count")], [3, 2, 0, 1]);
    let backoff_ms = first["backoff_ms"].as_u64().unwrap();
    assert!((95_000..=100_000).contains(&backoff_ms), "{first}");
    let lines = engagements(gate);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&lines[1]["count"], &lines[1]["message"]),
        (&39.into(), &"refused ip/32 127.0.0.1/32 by login, 39 times".into())
    );
}

#[test]
fn a_hold_and_the_decision_of_an_observing_rule_are_logged() {
    let backend = Backend::saying("ok");
    let rules = "[[rule]]\nname = 'calm'\nwhen = { path = '/calm' }\nclass = 'ip/32'\n\
                 rate = { rate = '2/s', burst = 1 }\n\
                 [[rule]]\nname = 'trial'\nmode = 'observe'\nwhen = { path = '/trial' }\nclass = 'ip/32'\n\
                 window = { max = 1, per = '60s' }\n";
    let gate = gate(&backend, rules);
    for path in ["/calm", "/calm", "/trial", "/trial"] {
        assert_eq!(gate.get(path).status, 200);
    }
    let lines = engagements(gate);
    let told: Vec<_> =
        lines.iter().map(|line| (line["verdict"].as_str().unwrap(), line["rule"].as_str().unwrap())).collect();
    assert_eq!(told, [("hold", "calm"), ("would-refuse", "trial")]);
    let backoff_ms = lines[0]["backoff_ms"].as_u64().unwrap();
    assert!((1..=500).contains(&backoff_ms), "{lines:?}");
    assert_eq!((&lines[0]["observed"], &lines[0]["allowed"]), (&2.into(), &1.into()));
}

#[test]
fn escalation_is_logged_with_its_level_and_its_backoff() {
    let backend = Backend::saying("ok");
    let rule = "show_values = true\n[[rule]]\nname = 'reconnect'\nclass = 'header:x-device-id'\n\
                window = { max = 1, per = '1s' }\n\
                escalation = { backoff = '40s', backoff_max = '60s', levels = 3, release = '30s' }\n";
    let gate = gate(&backend, rule);
    let ask =
        || roundtrip(gate.connect(), b"GET / HTTP/1.1\r\nHost: a\r\nX-Device-Id: d\"7\r\nConnection: close\r\n\r\n");
    assert_eq!([ask().status, ask().status, ask().status], [200, 429, 429]);
    let lines = engagements(gate);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((lines[0].get("position"), lines[0].get("wait_ms")), (None, None), "only the queue has positions");
    assert_eq!((&lines[0]["key"], &lines[0]["escalation_level"]), (&"d\\\"7".into(), &1.into()));
    assert!((39_000..=40_000).contains(&lines[0]["backoff_ms"].as_u64().unwrap()), "{lines:?}");
    assert_eq!(lines[1]["reason"], "in-backoff");
}

#[test]
fn holds_and_refusals_of_the_queue_are_logged() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(400));
        respond(stream, "ok")
    });
    let gate = gate(&backend, "in_flight = 1\nhold = { max = \"10s\", total = 2 }\n");
    let mut streams: Vec<_> = (0..4).map(|_| gate.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        eventually("it is taken", || gate.metric("tollgate_requests_total") == number as u64 + 1);
    }
    let mut statuses: Vec<u16> =
        streams.into_iter().map(|stream| read_response(&mut std::io::BufReader::new(stream)).unwrap().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 429], "nobody else is there");
    let lines = engagements(gate);
    let refused = lines.iter().find(|line| line["verdict"] == "refuse").unwrap();
    assert_eq!([&refused["reason"], &refused["class"], &refused["key"]], ["queue-full", "ip/32", "127.0.0.1/32"]);
    assert_eq!((refused.get("rule"), &refused["observed"], &refused["allowed"]), (None, &2.into(), &2.into()));
    assert_eq!((&refused["position"], refused["wait_ms"].is_u64()), (&3.into(), true), "{refused}");
    let held: u64 =
        lines.iter().filter(|line| line["verdict"] == "hold").map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(held, 2, "{lines:?}");
    assert!(lines.iter().any(|line| line["backoff_ms"].as_u64().unwrap() >= 300), "{lines:?}");
    let largest =
        lines.iter().filter(|line| line["verdict"] == "hold").map(|line| line["position"].as_u64().unwrap()).max();
    assert_eq!(largest, Some(2), "{lines:?}");
    assert!(lines.iter().all(|line| line["wait_ms"].is_u64()), "{lines:?}");
}

#[test]
fn a_storm_of_keys_writes_a_bounded_number_of_lines_and_loses_no_count() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'keys'\nclass = 'header:x-key'\nwindow = { max = 1, per = '900s' }\n";
    let gate = gate(&backend, rule);
    let mut stream = gate.connect();
    let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
    for number in 0..1_000 {
        for _ in 0..2 {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: {number}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            read_response(&mut reader).unwrap();
        }
    }
    drop((stream, reader));
    let lines = engagements(gate);
    let counted: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 1_000);
    assert!(lines.len() <= 600, "{} lines", lines.len());
    assert!(lines.iter().any(|line| line["message"].as_str().unwrap().starts_with("refused others, ")));
}

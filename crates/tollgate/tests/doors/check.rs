//! `POST /v1/check` and `POST /v1/report`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Doors, call, check, eventually, post};

fn start(rules: &str) -> (Doors, SocketAddr) {
    let mut doors = Doors::start(&format!("[doors]\nhttp = '127.0.0.1:0'\n{rules}"));
    let door = doors.door("http");
    (doors, door)
}

fn rule(name: &str, class: &str, limit: &str) -> String {
    format!("[[rule]]\nname = '{name}'\nclass = '{class}'\n{limit}\n")
}

#[test]
fn a_named_rule_responds_with_the_fields_of_a_decision_and_of_limit_info() {
    let (doors, door) = start(&rule("notes", "descriptor:user", "bucket = { size = 2, drip = 1, every = '60s' }"));
    let ask = || check(door, &json!({"rule": "notes", "key": "u1"}));
    let first = ask();
    assert_eq!(first["decision"], "admit");
    assert_eq!((&first["rule"], &first["reason"]), (&json!("notes"), &json!("within-limit")));
    assert_eq!((&first["blocked"], &first["remaining"], &first["resetMs"]), (&json!(false), &json!(1), &json!(0)));
    assert_eq!((&first["fullResetSec"], &first["clear_ms"]), (&json!(60), &first["fullResetMs"]));
    assert!(first["ticket"].is_string() && first["at_ms"].as_u64().unwrap() > 1_700_000_000_000);
    assert_eq!(first["headers"]["ratelimit-policy"], "\"notes\";q=2;w=120");
    // The call that fills the bucket is admitted; `reset_ms` is the time until the next one fits.
    let second = ask();
    assert_eq!((&second["blocked"], &second["remaining"]), (&json!(false), &json!(0)));
    assert!(second["resetMs"].as_u64().unwrap() > 50_000, "{second}");
    let answer = call(door, "POST", "/v1/check", &[], r#"{"rule": "notes", "key": "u1"}"#);
    assert_eq!(answer.status, 200);
    let third = answer.json();
    assert_eq!((&third["blocked"], &third["decision"]), (&json!(true), &json!("refuse")));
    assert_eq!((&third["remaining"], &third["ticket"]), (&json!(0), &Value::Null));
    let reset_ms = third["resetMs"].as_u64().unwrap();
    assert_eq!(third["resetSec"].as_u64().unwrap(), reset_ms.div_ceil(1000));
    // A millisecond may pass between the two calls.
    assert!(third["retry_after_ms"].as_u64().unwrap().abs_diff(reset_ms) <= 20, "{third}");
    assert!(third["fullResetMs"].as_u64().unwrap() > 110_000 && third["fullResetSec"].as_u64().unwrap() <= 120);
    assert_eq!(answer.header("retry-after"), third["headers"]["retry-after"].as_str());
    let retry_after: u64 = answer.header("retry-after").expect("a refusal has it").parse().unwrap();
    assert!((59..=60).contains(&retry_after), "{answer:?}");
    assert!(answer.header("ratelimit").unwrap().starts_with("\"notes\";r=0;t="), "{answer:?}");
    // Another key has its own bucket. A toll of 0 charges nothing.
    assert_eq!(check(door, &json!({"rule": "notes", "key": "u2", "toll": 0}))["remaining"], 2);
    assert_eq!(check(door, &json!({"rule": "notes", "key": 42, "toll": 2}))["remaining"], 0);
    assert_eq!(doors.metric("tollgate_door_refused_total"), 1);
    assert_eq!(doors.metric("tollgate_requests_refused_total"), 1);
}

#[test]
fn a_refused_key_is_recorded_by_the_watch() {
    let (doors, door) = start(&rule("notes", "descriptor:user", "bucket = { size = 1, drip = 1, every = '1h' }"));
    for _ in 0..5 {
        check(door, &json!({"attributes": {"user": "u1"}}));
    }
    eventually("an episode", || {
        let episodes: Value = serde_json::from_str(&doors.admin("/api/v1/episodes")).unwrap();
        let of_user = |episode: &Value| episode["key"] == "u1" && episode["class"] == "descriptor:user";
        episodes["episodes"].as_array().is_some_and(|all| all.iter().any(of_user))
    });
}

#[test]
fn a_described_request_is_subject_to_every_rule_that_applies() {
    let rules = rule("network", "ip/24", "bucket = { size = 3, drip = 1, every = '1h' }")
        + &rule(
            "login",
            "ip/32",
            "when = { method = 'POST', path = '/login' }\nbucket = { size = 1, drip = 1, every = '1h' }",
        );
    let (_doors, door) = start(&rules);
    let ask = |client: &str, method: &str| {
        let asked = check(door, &json!({"attributes": {"client": client, "method": method, "path": "/login?x=1"}}));
        (asked["decision"].as_str().unwrap().to_owned(), asked["rule"].as_str().unwrap().to_owned())
    };
    let (admit, refuse) = (|rule: &str| ("admit".into(), rule.into()), |rule: &str| ("refuse".into(), rule.into()));
    assert_eq!(ask("203.0.113.7", "POST"), admit("login"));
    // A refusal by one rule does not charge another.
    assert_eq!(ask("203.0.113.7", "POST"), refuse("login"));
    assert_eq!(ask("203.0.113.7", "GET"), admit("network"));
    assert_eq!(ask("203.0.113.8", "GET"), admit("network"));
    assert_eq!(ask("203.0.113.9", "GET"), refuse("network"));
    let nobody = check(door, &json!({"attributes": {"user": "u1"}}));
    assert_eq!((&nobody["decision"], &nobody["reason"]), (&json!("admit"), &json!("no-rule")));
    assert_eq!((&nobody["rule"], &nobody["remaining"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_client_is_the_same_through_the_gate_and_through_a_door() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in backend.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let limit = "bucket = { size = 3, drip = 1, every = '1h' }";
    let rules = rule("api", "header:x-api-key", limit);
    let config = format!("[gate]\nlisten = '127.0.0.1:0'\nbackend = 'http://{address}'\n{rules}");
    let mut doors = Doors::start(&format!("{config}[doors]\nhttp = '127.0.0.1:0'\n"));
    let (gate, door) = (doors.gate(), doors.door("http"));
    assert_eq!(call(gate, "GET", "/", &[("X-Api-Key", "k1")], "").status, 200);
    assert_eq!(check(door, &json!({"rule": "api", "key": "k1"}))["remaining"], 1);
    assert_eq!(check(door, &json!({"attributes": {"header:X-Api-Key": "k1"}}))["remaining"], 0);
    assert_eq!(call(gate, "GET", "/", &[("X-Api-Key", "k1")], "").status, 429);
    assert_eq!(call(gate, "GET", "/", &[("X-Api-Key", "k2")], "").status, 200);
}

#[test]
fn the_checks_of_a_call_are_decided_in_order_and_an_invalid_one_charges_nothing() {
    let (_doors, door) = start(&rule("api", "identifier", "bucket = { size = 2, drip = 1, every = '1h' }"));
    let one = json!({"rule": "api", "key": "u1"});
    let wrong = call(door, "POST", "/v1/check", &[], &json!([one, {"key": "u1"}]).to_string());
    assert_eq!(wrong.status, 400, "{wrong:?}");
    let answers = check(door, &json!([one, one, one, {"rule": "api", "key": "u2"}, {"rule": "none", "key": "u2"}]));
    let remaining: Vec<_> = answers.as_array().unwrap().iter().map(|answer| answer["remaining"].clone()).collect();
    assert_eq!(remaining, [json!(1), json!(0), json!(0), json!(1), Value::Null]);
    assert_eq!((&answers[1]["blocked"], &answers[2]["blocked"]), (&json!(false), &json!(true)));
    assert_eq!(answers[4], json!({"error": "the domain has no rule `none`"}));
}

#[test]
fn a_report_ends_a_request_and_so_does_the_deadline_of_its_ticket() {
    let (doors, door) = start(&rule("exports", "identifier", "in_flight = 1"));
    let ask = |deadline: u64| check(door, &json!({"rule": "exports", "key": "u1", "deadline_ms": deadline}));
    let first = ask(60_000);
    assert_eq!(first["decision"], "admit");
    assert_eq!(ask(60_000)["reason"], "busy");
    assert_eq!(post(door, "/v1/report", &json!({"ticket": first["ticket"]})), json!({"settled": true}));
    let again = call(door, "POST", "/v1/report", &[], &json!({"ticket": first["ticket"]}).to_string());
    assert_eq!(again.status, 404, "{again:?}");
    assert_eq!(ask(300)["decision"], "admit");
    assert_eq!(ask(300)["reason"], "busy");
    eventually("the deadline is over", || ask(300)["decision"] == "admit");
    assert_eq!(doors.metric("tollgate_door_tickets_expired_total"), 1);
    assert_eq!(doors.metric("tollgate_door_tickets"), 1);
}

#[test]
fn the_reported_cost_is_charged_to_a_budget_and_a_refund_reverts_a_charge() {
    let rules = rule("cpu", "descriptor:user", "budget = { cores = 0.1, burst = '1s' }\nhold = '0s'")
        + &rule("count", "identifier", "bucket = { size = 1, drip = 1, every = '1h' }");
    let (_doors, door) = start(&rules);
    let ask = || check(door, &json!({"rule": "cpu", "key": "u1", "toll_ms": 10.5}));
    let first = ask();
    assert_eq!(first["remaining"], 989);
    assert_eq!(
        post(door, "/v1/report", &json!({"ticket": first["ticket"], "toll_ms": 1500})),
        json!({"settled": true})
    );
    let blocked = ask();
    assert_eq!(blocked["blocked"], true);
    assert!((4_000..=5_000).contains(&blocked["resetMs"].as_u64().unwrap()), "{blocked}");
    let counted = check(door, &json!({"rule": "count", "key": "u1"}));
    assert_eq!(check(door, &json!({"rule": "count", "key": "u1"}))["blocked"], true);
    let many = post(door, "/v1/report", &json!([{"ticket": counted["ticket"], "refund": true}, {"ticket": "0-0-0-0"}]));
    assert_eq!(many, json!([{"settled": true}, {"settled": false}]));
    assert_eq!(check(door, &json!({"rule": "count", "key": "u1"}))["blocked"], false);
}

/// The part of a charge that time has paid back is not returned a second time.
#[test]
fn a_late_refund_creates_no_credit() {
    for limit in ["rate = { rate = '4/s', burst = 8 }\nhold = '0s'", "bucket = { size = 8, drip = 1, every = '250ms' }"]
    {
        let (_doors, door) = start(&rule("calm", "identifier", limit));
        let ask = || check(door, &json!({"rule": "calm", "key": "u1"}));
        let parked = [(); 8].map(|()| ask());
        std::thread::sleep(Duration::from_millis(2_100));
        let began = Instant::now();
        (0..8).for_each(|_| assert_eq!(ask()["decision"], "admit"));
        for ticket in parked.map(|answer| answer["ticket"].clone()) {
            assert_eq!(post(door, "/v1/report", &json!({"ticket": ticket, "refund": true})), json!({"settled": true}));
        }
        let admitted = (0..12).filter(|_| ask()["decision"] == "admit").count();
        // With eight refunds, this would fail on a machine that takes less than two seconds for the calls above.
        let paid_back = began.elapsed().as_secs_f64() * 4.0;
        assert!(admitted as f64 <= paid_back, "{admitted} admitted, {paid_back} paid back: {limit}");
    }
}

#[test]
fn a_refund_returns_what_was_charged_under_a_factor() {
    let (_doors, door) = start(&rule("calm", "identifier", "rate = { rate = '1/h', burst = 1 }\nhold = '0s'"));
    let ask = || check(door, &json!({"rule": "calm", "key": "u1", "factor": 0.1}));
    let admitted: Vec<Value> = (0..12).map(|_| ask()).filter(|answer| answer["decision"] == "admit").collect();
    assert_eq!(admitted.len(), 10);
    post(door, "/v1/report", &json!({"ticket": admitted[0]["ticket"], "refund": true}));
    assert_eq!((0..12).filter(|_| ask()["decision"] == "admit").count(), 1);
}

/// Every door compares paths as the gate does.
#[test]
fn a_spelling_of_a_path_does_not_bypass_its_rule_at_any_door() {
    let limit = "when = { path = '/login' }\nwindow = { max = 1, per = '1h' }";
    let (_doors, door) = start(&rule("login", "ip/32", limit));
    let checked = |path: &str| check(door, &json!({"attributes": {"client": "203.0.113.7", "path": path}}));
    let auth = |path: &str| {
        let headers = [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Uri", path), ("X-Original-URI", path)];
        ["/v1/auth", "/v1/auth/nginx"].map(|door_path| call(door, "GET", door_path, &headers, "").status)
    };
    let envoy = |path: &str| {
        let entries = json!([{"key": "client", "value": "203.0.113.7"}, {"key": "path", "value": path}]);
        let body = json!({"domain": "default", "descriptors": [{"entries": entries}]}).to_string();
        call(door, "POST", "/json", &[], &body).status
    };
    assert_eq!(checked("/login")["decision"], "admit");
    for path in [
        "/login",
        "/%6cogin",
        "//login",
        "/./login",
        "/x/../login?a=b",
        "/login/",
        "/login;x",
        "/login#x",
        "http://site.example/login",
    ] {
        assert_eq!(checked(path)["decision"], "refuse", "{path}");
        assert_eq!((auth(path), envoy(path)), ([429, 403], 429), "{path}");
    }
    assert_eq!((auth("/logout"), envoy("/logout")), ([200, 200], 200));
}

#[test]
fn a_factor_scales_a_budget_before_and_after_the_cost_is_known() {
    let (_doors, door) =
        start(&rule("cpu", "descriptor:user", "budget = { cores = 0.001, burst = '1s' }\nhold = '0s'"));
    // Half a second per request, expected or reported. A quarter of the factor is four times the budget.
    let admitted = |key: &str, factor: f64, is_expected: bool| {
        let ask = |_: &usize| {
            let mut asked = json!({"rule": "cpu", "key": key, "factor": factor, "toll_ms": 0});
            if is_expected {
                asked["toll_ms"] = json!(500);
            }
            let answer = check(door, &asked);
            if let Some(ticket) = answer["ticket"].as_str() {
                post(door, "/v1/report", &json!({"ticket": ticket, "toll_ms": 500}));
            }
            answer["blocked"] == false
        };
        (0..20).filter(ask).count()
    };
    // A key is admitted until it is in debt.
    for is_expected in [true, false] {
        let name = |factor: &str| format!("{factor}-{is_expected}");
        assert_eq!(admitted(&name("one"), 1.0, is_expected), 3);
        assert_eq!(admitted(&name("quarter"), 0.25, is_expected), 9);
        assert_eq!(admitted(&name("four"), 4.0, is_expected), 1);
    }
    let remaining = |factor: f64| {
        check(door, &json!({"rule": "cpu", "key": "new", "toll": 0, "factor": factor}))["remaining"].as_u64().unwrap()
    };
    assert_eq!([remaining(1.0), remaining(0.5), remaining(2.0)], [1000, 2000, 500]);
}

#[test]
fn a_factor_scales_a_limit_and_zero_lifts_it() {
    let (_doors, door) = start(&rule("notes", "identifier", "bucket = { size = 4, drip = 1, every = '1h' }"));
    let admitted = |key: &str, factor: f64| {
        let ask = |_: &usize| check(door, &json!({"rule": "notes", "key": key, "factor": factor}))["blocked"] == false;
        (0..12).filter(ask).count()
    };
    assert_eq!([admitted("a", 1.0), admitted("b", 0.5), admitted("c", 2.0), admitted("d", 0.0)], [4, 8, 2, 12]);
    let unlimited = check(door, &json!({"rule": "notes", "key": "a", "factor": 0}));
    assert_eq!((&unlimited["remaining"], &unlimited["resetMs"]), (&json!(9_007_199_254_740_991_u64), &json!(0)));
    assert_eq!(unlimited["headers"], json!({}));
    let negative = call(door, "POST", "/v1/check", &[], r#"{"rule": "notes", "key": "a", "factor": -1}"#);
    assert_eq!(negative.status, 400, "{negative:?}");
}

/// Sharkey's `remaining` is 0 while a call is blocked, also if a cheaper one would be admitted.
#[test]
fn nothing_remains_for_a_call_that_is_blocked() {
    let (_doors, door) = start(&rule("notes", "identifier", "bucket = { size = 5, drip = 1, every = '1h' }"));
    let ask = |toll: u64| check(door, &json!({"rule": "notes", "key": "a", "toll": toll}));
    assert_eq!(ask(3)["remaining"], 2);
    let blocked = ask(3);
    assert_eq!((&blocked["blocked"], &blocked["remaining"]), (&json!(true), &json!(0)), "{blocked}");
    assert_eq!(blocked["headers"]["x-ratelimit-remaining"], "0", "{blocked}");
    assert_eq!(ask(2)["blocked"], false);
}

#[test]
fn a_hold_has_a_duration_and_is_a_refusal_for_callers_that_do_not_wait() {
    let (_doors, door) = start(&rule("calm", "identifier", "rate = { rate = '1/s', burst = 1 }\nhold = '5s'"));
    let ask = |hold: bool| check(door, &json!({"rule": "calm", "key": "u1", "hold": hold}));
    assert_eq!(ask(true)["decision"], "admit");
    let refused = ask(false);
    assert_eq!((&refused["decision"], &refused["blocked"]), (&json!("refuse"), &json!(true)));
    let held = ask(true);
    assert_eq!((&held["decision"], &held["blocked"]), (&json!("hold"), &json!(false)));
    let wait = held["hold_ms"].as_u64().unwrap();
    assert!((500..=1_000).contains(&wait), "{held}");
    // The refused call was refunded, so the next one is held for one more interval.
    assert!((1_500..=2_000).contains(&ask(true)["hold_ms"].as_u64().unwrap()));
}

#[test]
fn a_hold_for_which_there_is_no_room_counts_as_a_refusal() {
    let limit = "rate = { rate = '10/m', burst = 1 }\nhold = '10s'";
    let (doors, door) = start(&format!("[gate.hold]\ntotal = 1\n{}", rule("calm", "ip/32", limit)));
    let body = |client: &str| json!({"attributes": {"client": client}, "queue": true});
    for client in ["203.0.113.1", "203.0.113.2"] {
        assert_eq!(check(door, &body(client))["decision"], "admit");
    }
    let waiting = body("203.0.113.1").to_string();
    let mut held = TcpStream::connect(door).unwrap();
    write!(held, "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{waiting}", waiting.len()).unwrap();
    eventually("a request is held", || doors.metric("tollgate_requests_held") == 1);
    assert_eq!(check(door, &body("203.0.113.2"))["decision"], "refuse");
    assert_eq!(doors.metric("tollgate_requests_refused_total"), 1);
    let metrics = doors.admin("/metrics");
    for verdict in ["held", "refused"] {
        let line = format!("tollgate_rule_decisions_total{{rule=\"calm\",class=\"ip/32\",verdict=\"{verdict}\"}} 1");
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
    drop(held);
    eventually("no request is held", || doors.metric("tollgate_requests_held") == 0);
}

#[test]
fn the_response_to_an_invalid_call_contains_the_reason() {
    let rules = rule("api", "identifier", "bucket = { size = 2, drip = 1, every = '1h' }")
        + &rule("joined", "identifier+path", "bucket = { size = 2, drip = 1, every = '1h' }")
        + &rule("address", "ip/32", "bucket = { size = 2, drip = 1, every = '1h' }");
    let (_doors, door) = start(&rules);
    for (body, status, words) in [
        (r#"{"rule": "none", "key": "u1"}"#, 404, "no rule `none`"),
        (r#"{"domain": "none"}"#, 404, "no domain `none`"),
        (r#"{"rule": "api"}"#, 400, "no key of the class"),
        (r#"{"rule": "joined", "key": "u1"}"#, 400, "the `key` is no key of the class of the rule `joined`"),
        (r#"{"rule": "address", "key": "u1"}"#, 400, "a class `ip/*` needs an address"),
        (r#"{"key": "u1"}"#, 400, "is the key of a `rule`"),
        (r#"{"attributes": {"client": "nobody"}}"#, 400, "not an IP address"),
        (r#"{"attributes": {"user": ["u1"]}}"#, 400, "a text or a whole number"),
        (r#"{"rull": "api"}"#, 400, "unknown field `rull`"),
        (r#"{"toll": 1e300}"#, 400, "no check"),
        (r#"{"toll_ms": 1e300}"#, 400, "`toll_ms` is not from 0"),
        (r#"{"deadline_ms": 0}"#, 400, "`deadline_ms`"),
        ("", 400, "no check"),
        ("null", 400, "no check"),
    ] {
        let answer = call(door, "POST", "/v1/check", &[], body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains(words), "{body}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    let answer = check(door, &json!({"rule": "joined", "attributes": {"identifier": "u1", "path": "/a"}}));
    assert_eq!(answer["remaining"], 1);
    assert_eq!(call(door, "GET", "/v1/check", &[], "").status, 405);
    assert_eq!(call(door, "GET", "/v2", &[], "").status, 404);
}

#[test]
fn all_threads_together_admit_exactly_the_limit() {
    let (_doors, door) = start(&rule("api", "identifier", "bucket = { size = 50, drip = 1, every = '1h' }"));
    let begun = Instant::now();
    let admitted: usize = std::thread::scope(|scope| {
        let ask = |_: &usize| check(door, &json!({"rule": "api", "key": "u1"}))["blocked"] == false;
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(move || (0..25).filter(ask).count())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 50, "after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// docs/coming-from/sharkey.md: a bucket for each file and user, with Sharkey's LimitInfo.
#[test]
fn sharkeys_limit_of_a_file_is_asked_at_the_documented_door() {
    let config = &crate::clients::blocks("docs/coming-from/sharkey.md", "toml")[0];
    let config =
        config.replace("127.0.0.1:8890", "127.0.0.1:0").replace("[gate]\n", "[gate]\nlisten = \"127.0.0.1:0\"\n");
    let mut doors = Doors::start(&config);
    let door = doors.door("http");
    let ask = |file: &str| check(door, &json!({ "rule": "file", "attributes": { "user": "u1", "file": file } }));
    let first = ask("f7");
    assert_eq!((&first["blocked"], &first["remaining"], &first["resetMs"]), (&json!(false), &json!(9), &json!(0)));
    (0..9).for_each(|_| drop(ask("f7")));
    let blocked = ask("f7");
    assert_eq!((&blocked["blocked"], &blocked["remaining"]), (&json!(true), &json!(0)));
    let [reset, full] = ["resetSec", "fullResetSec"].map(|name| blocked[name].as_u64().unwrap());
    assert!(reset == 60 && full == 600, "{reset} and {full}");
    assert_eq!(ask("f8")["blocked"], false, "another file");
}

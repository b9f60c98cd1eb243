//! Decisions of the rate limit service, asked through `POST /json`, which has the same answers as the gRPC service.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{CONFIG, LIMITS, start_with};
use crate::support::{Answer, Doors, call, eventually};

fn start() -> (Doors, SocketAddr) {
    let mut doors = start_with(LIMITS, CONFIG);
    let door = doors.door("http");
    (doors, door)
}

/// A descriptor with these entries.
fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entries: Vec<Value> = entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({ "entries": entries })
}

fn ask_raw(door: SocketAddr, body: &Value) -> Answer {
    call(door, "POST", "/json", &[("Content-Type", "application/json")], &body.to_string())
}

/// Asks about these descriptors; the answer's status agrees with its code.
fn ask(door: SocketAddr, descriptors: &[Value]) -> Value {
    ask_in(door, "shop", descriptors)
}

fn ask_in(door: SocketAddr, domain: &str, descriptors: &[Value]) -> Value {
    let answer = ask_raw(door, &json!({"domain": domain, "descriptors": descriptors}));
    let json = answer.json();
    assert_eq!(answer.status == 429, json["overallCode"] == "OVER_LIMIT", "{answer:?}");
    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
    json
}

/// The codes of several questions about one descriptor.
fn codes(door: SocketAddr, count: usize, descriptor: &Value) -> Vec<String> {
    let code = |_| ask(door, std::slice::from_ref(descriptor))["overallCode"].as_str().unwrap().to_owned();
    (0..count).map(code).collect()
}

const OK: &str = "OK";
const OVER: &str = "OVER_LIMIT";

#[test]
fn each_value_of_a_key_has_its_own_counter_with_limit_remaining_and_reset() {
    let (_doors, door) = start();
    let alice = descriptor(&[("client", "alice")]);
    let first = &ask(door, std::slice::from_ref(&alice))["statuses"][0];
    assert_eq!(first["currentLimit"], json!({"requestsPerUnit": 2, "unit": "MINUTE"}));
    assert_eq!(first["limitRemaining"], 1);
    let reset: f64 = first["durationUntilReset"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
    assert!((50.0..=60.0).contains(&reset), "{first}");
    assert_eq!(codes(door, 2, &alice), [OK, OVER]);
    assert_eq!(codes(door, 3, &descriptor(&[("client", "bob")])), [OK, OK, OVER]);
    assert_eq!(codes(door, 3, &descriptor(&[("other", "bob")])), [OK; 3]);
}

#[test]
fn a_nested_limit_applies_to_descriptors_of_its_depth_only() {
    let (_doors, door) = start();
    let login = descriptor(&[("client", "alice"), ("path", "/login")]);
    assert_eq!(codes(door, 2, &login), [OK, OVER]);
    assert_eq!(codes(door, 3, &descriptor(&[("client", "alice"), ("path", "/other")])), [OK; 3]);
    // Its counter is not the one of the client.
    assert_eq!(codes(door, 3, &descriptor(&[("client", "alice")])), [OK, OK, OVER]);
}

#[test]
fn wildcards_have_a_counter_per_value_unless_they_share_a_threshold() {
    let (_doors, door) = start();
    assert_eq!(codes(door, 2, &descriptor(&[("file", "abc")])), [OK, OVER]);
    assert_eq!(codes(door, 2, &descriptor(&[("file", "abd")])), [OK, OVER]);
    assert_eq!(codes(door, 4, &descriptor(&[("file", "a.txt")])), [OK, OK, OK, OVER]);
    assert_eq!(codes(door, 1, &descriptor(&[("file", "b1.txt")])), [OK]);
    assert_eq!(codes(door, 2, &descriptor(&[("file", "b2.txt")])), [OK, OVER]);
    assert_eq!(codes(door, 1, &descriptor(&[("file", "b3.txt")])), [OVER]);
}

#[test]
fn shadow_mode_counts_and_lets_pass() {
    let (doors, door) = start();
    assert_eq!(codes(door, 3, &descriptor(&[("tier", "trial")])), [OK; 3]);
    let metrics = doors.admin("/metrics");
    let is_it = |line: &&str| line.contains("tier_trial") && line.contains("would-refuse");
    let line = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{metrics}"));
    assert!(line.ends_with(" 2"), "{line}");
}

#[test]
fn a_limit_is_replaced_by_one_that_names_it_and_unlimited_ones_have_no_counter() {
    let (_doors, door) = start();
    let (base, vip) = (descriptor(&[("base", "x")]), descriptor(&[("vip", "x")]));
    for expected in [OK, OK, OK, OVER] {
        let answer = ask(door, &[base.clone(), vip.clone()]);
        assert_eq!(answer["overallCode"], expected);
        assert_eq!(answer["statuses"][0], json!({"code": "OK"}));
        assert_eq!(answer["statuses"][1]["code"], expected);
    }
    assert_eq!(codes(door, 2, &base), [OK, OVER]);
    assert_eq!(ask(door, &[base])["statuses"][0]["currentLimit"]["name"], "base");
    let free = ask(door, &[descriptor(&[("free", "x")])]);
    assert_eq!(free["statuses"][0], json!({"code": "OK", "limitRemaining": u32::MAX}));
}

#[test]
fn a_limit_of_zero_refuses_all() {
    let (_doors, door) = start();
    let answer = ask(door, &[descriptor(&[("banned", "x")])]);
    assert_eq!(answer["statuses"][0]["code"], OVER);
    assert_eq!(answer["statuses"][0]["currentLimit"], json!({"unit": "DAY"}));
}

#[test]
fn quota_mode_refuses_when_all_quotas_are_used_up() {
    let (_doors, door) = start();
    let both = [descriptor(&[("region", "east")]), descriptor(&[("region", "west")])];
    let expected = [(OK, OK, OK), (OK, OVER, OK), (OVER, OVER, OVER)];
    for (overall, east, west) in expected {
        let answer = ask(door, &both);
        let codes = [&answer["overallCode"], &answer["statuses"][0]["code"], &answer["statuses"][1]["code"]];
        assert_eq!(codes, [overall, east, west], "{answer}");
    }
}

#[test]
fn a_refused_request_charges_none_of_its_descriptors() {
    let (_doors, door) = start();
    let (alice, file) = (descriptor(&[("client", "alice")]), descriptor(&[("file", "abc")]));
    assert_eq!(codes(door, 1, &file), [OK]);
    for _ in 0..5 {
        let answer = ask(door, &[alice.clone(), file.clone()]);
        assert_eq!([&answer["overallCode"], &answer["statuses"][0]["code"]], [OVER, OK]);
        assert_eq!(answer["statuses"][0]["limitRemaining"], 2);
    }
    assert_eq!(codes(door, 3, &alice), [OK, OK, OVER]);
}

#[test]
fn hits_are_added_checked_and_returned() {
    let (_doors, door) = start();
    let tokens = |hits: u64, is_negative: bool| {
        let mut descriptor = descriptor(&[("tokens", "u1")]);
        descriptor["hitsAddend"] = hits.into();
        descriptor["isNegativeHits"] = is_negative.into();
        let answer = ask(door, &[descriptor]);
        let status = &answer["statuses"][0];
        (answer["overallCode"].as_str().unwrap().to_owned(), status["limitRemaining"].as_u64().unwrap_or(0))
    };
    let ok = |left| (OK.to_owned(), left);
    let over = (OVER.to_owned(), 0);
    assert_eq!(tokens(0, false), ok(100));
    assert_eq!(tokens(60, false), ok(40));
    assert_eq!(tokens(0, false), ok(40));
    assert_eq!(tokens(10, true), ok(50));
    // A report of more than is left takes the rest, and then a check is refused.
    assert_eq!(tokens(80, false), over);
    assert_eq!(tokens(0, false), over);
    assert_eq!(tokens(1, false), over);
    assert_eq!(tokens(1_000, true), ok(100));
    let all = json!({"domain": "shop", "hitsAddend": 30, "descriptors": [descriptor(&[("tokens", "u2")])]});
    assert_eq!(ask_raw(door, &all).json()["statuses"][0]["limitRemaining"], 70);
}

#[test]
fn an_override_comes_before_the_file_and_needs_a_known_domain() {
    let (doors, door) = start();
    let overridden = |domain: &str, value: &str| {
        let mut descriptor = descriptor(&[("client", value)]);
        descriptor["limit"] = json!({"requestsPerUnit": 1, "unit": "HOUR"});
        ask_in(door, domain, &[descriptor])
    };
    let first = overridden("shop", "alice");
    assert_eq!(first["statuses"][0]["currentLimit"], json!({"requestsPerUnit": 1, "unit": "HOUR"}));
    assert_eq!(overridden("shop", "alice")["overallCode"], OVER);
    assert_eq!(overridden("shop", "bob")["overallCode"], OK);
    assert_eq!(codes(door, 3, &descriptor(&[("client", "alice")])), [OK, OK, OVER]);
    for _ in 0..3 {
        assert_eq!(overridden("nowhere", "alice")["statuses"][0], json!({"code": "OK"}));
    }
    assert_eq!(doors.metric("tollgate_door_unknown_domain_total"), 3);
}

#[test]
fn a_domain_of_the_settings_decides_by_its_rules() {
    let (doors, door) = start();
    let user = descriptor(&[("user", "u1")]);
    let codes: Vec<Value> =
        (0..3).map(|_| ask_in(door, "plain", std::slice::from_ref(&user))["overallCode"].clone()).collect();
    assert_eq!(codes, [OK, OK, OVER]);
    let refused = ask_in(door, "plain", &[user]);
    assert_eq!(refused["statuses"][0]["currentLimit"]["name"], "users");
    let headers = refused["responseHeadersToAdd"].as_array().unwrap();
    let header = |name: &str| headers.iter().find(|header| header["key"] == name).map(|header| header["value"].clone());
    assert_eq!(header("ratelimit-policy").unwrap(), "\"users\";q=2;w=120");
    assert!(header("retry-after").is_some() && header("x-ratelimit-reset").is_none());
    // The same state decides through the other doors.
    let check = json!({"domain": "plain", "rule": "users", "key": "u1"});
    assert_eq!(crate::support::check(door, &check)["decision"], "refuse");
    assert_eq!(doors.metric("tollgate_door_refused_total"), 3);
}

#[test]
fn wrong_calls_are_answered_400_and_others_are_served() {
    let (_doors, door) = start();
    let one = descriptor(&[("client", "x")]);
    for body in [
        json!({}),
        json!({"domain": "shop"}),
        json!({"domain": "shop", "descriptors": []}),
        json!({"domain": "", "descriptors": [one]}),
        json!({"domain": "shop", "descriptors": [{}]}),
        json!({"domain": "shop", "descriptors": vec![one.clone(); 101]}),
        json!({"domain": "shop", "descriptors": [{"entries": vec![json!({"key": "a"}); 33]}]}),
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "a"}], "hitsAddend": "1000000001"}]}),
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 1}}]}),
    ] {
        assert_eq!(ask_raw(door, &body).status, 400, "{body}");
    }
    assert_eq!(call(door, "GET", "/json", &[], "").status, 405);
    assert_eq!(codes(door, 1, &one), [OK]);
}

#[test]
fn a_reload_takes_over_a_changed_file_and_keeps_the_state_of_unchanged_limits() {
    let (doors, door) = start();
    let (alice, banned) = (descriptor(&[("client", "alice")]), descriptor(&[("banned", "x")]));
    assert_eq!(codes(door, 3, &alice), [OK, OK, OVER]);
    let file = doors.folder.path().join("limits.yaml");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 0", "requests_per_unit: 5")).unwrap();
    doors.signal("HUP");
    eventually("the limit of 0 is 5 now", || ask(door, std::slice::from_ref(&banned))["overallCode"] == OK);
    assert_eq!(codes(door, 1, &alice), [OVER]);
    // A file with errors changes nothing.
    std::fs::write(&file, "domain: shop\ndescriptors: 5\n").unwrap();
    doors.signal("HUP");
    eventually("the reload fails", || doors.metric("tollgate_reloads_failed_total") == 1);
    assert_eq!(codes(door, 1, &alice), [OVER]);
}

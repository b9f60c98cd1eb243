//! The load that applications report, a pinned band, and query parameters as keys.

use serde_json::{Value, json};

use crate::support::{Doors, call, check, eventually, post};

fn band(doors: &Doors) -> String {
    let status: Value = serde_json::from_str(&doors.admin("/api/v1/status")).unwrap();
    status["band"]["name"].as_str().unwrap_or_else(|| panic!("{status}")).to_owned()
}

#[test]
fn a_reported_load_raises_the_band_and_an_operator_can_pin_it() {
    let config = |lines: &str| format!("[doors]\nhttp = '127.0.0.1:0'\n[gate]\n{lines}");
    let mut doors = Doors::start(&config(""));
    let door = doors.door("http");
    assert_eq!(band(&doors), "normal");
    let report = |lag_ms: f64| post(door, "/v1/load", &json!({"lag_ms": lag_ms}))["band"].clone();
    eventually("the band is elevated", || report(120.5) == "elevated");
    assert_eq!(check(door, &json!({}))["band"], "elevated");
    // The value that decided is shown and logged, so that the band can be explained.
    let status: Value = serde_json::from_str(&doors.admin("/api/v1/status")).unwrap();
    assert_eq!(status["band"]["sustained_ms"], 121, "{status}");
    let line: Value = serde_json::from_str(&doors.logged("the band has changed")).unwrap();
    assert_eq!(
        (&line["band"], &line["was"], &line["sustained_ms"]),
        (&json!("elevated"), &json!("normal"), &json!(121))
    );
    doors.rewrite(&config("bands = { pin = 'critical' }\n"));
    doors.signal("HUP");
    doors.logged("settings reloaded");
    assert_eq!((report(0.0), band(&doors)), (json!("critical"), "critical".to_owned()));
    for body in ["", "{}", r#"{"lag_ms": -1}"#, r#"{"lag_ms": 1e300}"#, r#"{"lag_ms": "x"}"#] {
        assert_eq!(call(door, "POST", "/v1/load", &[], body).status, 400, "{body}");
    }
}

#[test]
fn every_spelling_of_a_query_parameter_is_the_same_key() {
    let rule = "[[rule]]\nname = 'devices'\nclass = 'query:device'\nbucket = { size = 9, drip = 1, every = '1h' }\n";
    let mut doors = Doors::start(&format!("[doors]\nhttp = '127.0.0.1:0'\n{rule}"));
    let door = doors.door("http");
    let left = |path: &str| check(door, &json!({"attributes": {"path": path}}))["remaining"].clone();
    assert_eq!(left("/ws?device=d1&x=1"), 8);
    assert_eq!(left("/ws?x=2&%64evice=d%31"), 7);
    assert_eq!(check(door, &json!({"rule": "devices", "key": "d1"}))["remaining"], 6);
    assert_eq!(check(door, &json!({"attributes": {"query:device": "d1"}}))["remaining"], 5);
    let forwarded = [("X-Forwarded-Uri", "/ws?device=d1"), ("X-Forwarded-For", "203.0.113.7")];
    assert_eq!(call(door, "GET", "/v1/auth", &forwarded, "").header("x-ratelimit-remaining"), Some("4"));
    // All requests with two values share one key.
    assert_eq!((left("/ws?device=d1&device=a"), left("/ws?device=b&device=d1")), (json!(8), json!(7)));
    assert_eq!(left("/ws?devices=d1"), Value::Null);
}

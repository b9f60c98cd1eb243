//! Values of headers and cookies are masked in the log, the list of spenders, the page of a key and the list of
//! changes, and operators can use the masked forms.

use serde_json::{Value, json};

use crate::support::{Gate, eventually};

const SECRET: &str = "sk_live_0123456789abcdef";
const BY_KEY: &str =
    "[[rule]]\nname = \"keys\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
const BY_COOKIE: &str =
    "[[rule]]\nname = \"cookies\"\nclass = \"cookie:sid\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

fn query(pairs: &[(&str, &str)]) -> String {
    serde_urlencoded::to_string(pairs).unwrap()
}

/// The only key of a class, as shown.
fn name(gate: &Gate, class: &str) -> String {
    let mut name = Value::Null;
    eventually("a key is listed", || {
        name = gate.json(&format!("/api/v1/buckets?{}", query(&[("class", class)])))["buckets"][0]["key"].clone();
        name.is_string()
    });
    name.as_str().unwrap().to_owned()
}

#[test]
fn a_key_is_explained_cleared_and_exempted_by_its_masked_form() {
    for (rule, class, header, value) in [
        (BY_KEY, "header:x-api-key", "x-api-key", SECRET.to_owned()),
        (BY_COOKIE, "cookie:sid", "cookie", format!("lang=en; sid={SECRET}")),
    ] {
        let gate = Gate::start(rule);
        let ask = || gate.request("/", &[(header, &value)]).status;
        assert_eq!((ask(), ask()), (200, 429));
        let name = name(&gate, class);
        assert!(name.starts_with("sk_l*") && name.len() == 21, "{name}");

        let page = gate.json(&format!("/api/v1/key?{}", query(&[("class", class), ("key", &name)])));
        assert_eq!(page["rules"][0]["decision"], "refuse", "{page}");
        // The console sends the request that it received from the page.
        let explained = gate.post("/api/v1/explain", &page["request"]).json();
        assert_eq!(explained["decision"], "refuse", "{explained}");

        let which = json!({ "class": class, "key": name, "note": "a test", "for_ms": 600_000 });
        assert_eq!(gate.post("/api/v1/key/clear", &which).json()["rules"], 1);
        assert_eq!((ask(), ask()), (200, 429));
        assert_eq!(gate.post("/api/v1/key/exempt", &which).status, 200);
        assert_eq!((ask(), ask()), (200, 200));
        // The value itself works too, and is recorded masked.
        let which = json!({ "class": class, "key": SECRET, "note": "a test", "for_ms": 0 });
        assert_eq!(gate.post("/api/v1/key/exempt", &which).status, 200);
        assert_eq!(ask(), 429);

        let mut shown = vec![page.to_string(), gate.json("/api/v1/audit").to_string()];
        eventually("an episode is listed", || {
            let episodes = gate.json("/api/v1/episodes");
            shown.push(episodes.to_string());
            episodes["episodes"].as_array().unwrap().iter().any(|episode| episode["key"] == *name)
        });
        shown.push(gate.json(&format!("/api/v1/buckets?{}", query(&[("class", class)]))).to_string());
        gate.logged(&name);
        for text in shown.iter().chain(&gate.log()) {
            assert!(!text.contains("0123456789"), "{text}");
        }
    }
}

#[test]
fn a_search_finds_a_masked_key_by_its_complete_value_only() {
    let gate = Gate::start(BY_KEY);
    gate.request("/", &[("x-api-key", SECRET)]);
    gate.request("/", &[("x-api-key", SECRET)]);
    let name = name(&gate, "header:x-api-key");
    let found = |search: &str| {
        let query = query(&[("class", "header:x-api-key"), ("search", search)]);
        gate.json(&format!("/api/v1/buckets?{query}"))["buckets"].as_array().unwrap().len()
    };
    assert_eq!([found(&name), found("sk_l*"), found(SECRET), found("sk_live"), found("0123")], [1, 1, 1, 0, 0]);
}

#[test]
fn values_are_shown_if_the_settings_turn_masking_off() {
    let gate = Gate::start(&format!("show_values = true\n{BY_KEY}"));
    gate.request("/", &[("x-api-key", SECRET)]);
    gate.request("/", &[("x-api-key", SECRET)]);
    assert_eq!(name(&gate, "header:x-api-key"), SECRET);
    gate.logged(SECRET);
}

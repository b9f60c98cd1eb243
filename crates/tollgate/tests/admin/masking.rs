//! Values of headers and cookies are masked in the log, the list of spenders, the page of a key and the list of
//! changes, and operators can use the masked forms.

use serde_json::{Value, json};

use crate::support::{Gate, ask, eventually};

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

/// The digest has a key of the process: without it, a reader of the log could find the value by trying.
#[test]
fn each_process_masks_with_a_key_of_its_own() {
    let shown = [(); 2].map(|()| {
        let gate = Gate::start(BY_KEY);
        (0..2).for_each(|_| drop(gate.request("/", &[("x-api-key", SECRET)])));
        name(&gate, "header:x-api-key")
    });
    assert!(shown[0][..5] == shown[1][..5] && shown[0] != shown[1], "{shown:?}");
}

/// A token of the JSON body, as Sharkey's clients send it.
#[test]
fn a_value_of_a_json_body_is_masked_and_cleared_by_its_masked_form() {
    let gate = Gate::start(&BY_KEY.replace("header:x-api-key", "json:/i"));
    let body = json!({ "i": SECRET }).to_string();
    let send = || ask(gate.address, "POST", "/", &[("Content-Type", "application/json")], &body).status;
    assert_eq!([send(), send()], [200, 429]);
    let name = name(&gate, "json:/i");
    assert!(name.starts_with("sk_l*"), "{name}");
    let which = json!({ "class": "json:/i", "key": name, "note": "a test" });
    assert_eq!(gate.post("/api/v1/key/clear", &which).json()["rules"], 1);
    assert_eq!([send(), send()], [200, 429]);
    gate.logged(&name);
    let shown = ["/api/v1/audit", "/api/v1/episodes", "/api/v1/buckets?class=json:/i"].map(|path| gate.get(path).body);
    for text in shown.iter().chain(&gate.log()) {
        assert!(!text.contains("0123456789"), "{text}");
    }
}

/// The gate itself has no state for a key that another program reports.
#[test]
fn a_reported_key_is_found_by_its_masked_form() {
    let gate = Gate::start(BY_KEY);
    let entry = json!({ "class": "header:x-api-key", "key": SECRET, "rejected": 7 });
    assert_eq!(gate.post("/api/v1/rejections", &json!({ "id": "r1", "entries": [entry] })).status, 202);
    let shown = gate.json("/api/v1/episodes")["episodes"][0]["key"].as_str().unwrap().to_owned();
    assert!(shown.starts_with("sk_l*"), "{shown}");
    let page = gate.json(&format!("/api/v1/key?{}", query(&[("class", "header:x-api-key"), ("key", &shown)])));
    assert_eq!(page["episode"]["rejected"], 7, "{page}");
}

#[test]
fn the_access_log_has_no_values_of_headers_and_cookies() {
    for format in ["json", "combined"] {
        let access_log = format!("access_log = {{ output = \"FOLDER/access.log\", format = \"{format}\" }}\n");
        let gate = Gate::start(&format!("{access_log}{BY_KEY}{BY_COOKIE}"));
        let cookie = format!("sid={SECRET}");
        let ask = || gate.request("/page", &[("x-api-key", SECRET), ("cookie", &cookie)]).status;
        assert_eq!([ask(), ask()], [200, 429]);
        let log = || std::fs::read_to_string(gate.path().join("access.log")).unwrap_or_default();
        eventually("both requests are logged", || log().lines().count() == 2);
        assert!(log().contains("/page") && !log().contains("0123456789"), "{}", log());
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

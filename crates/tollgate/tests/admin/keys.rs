//! The API of keys: listing, explaining, clearing and exempting.

use serde_json::{Value, json};

use crate::support::{Gate, eventually};

const RULES: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
    [[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 2, drip = 1, every = \"1h\" }\n\
    [[rule]]\nname = \"pages\"\nwhen = { path = \"/page\" }\nclass = \"user-agent\"\nbucket = { size = 100, drip = 1, every = \"1h\" }\n";

fn from(gate: &Gate, client: &str) -> u16 {
    gate.request("/", &[("X-Forwarded-For", client), ("User-Agent", "tester")]).status
}

fn key(gate: &Gate) -> Value {
    gate.json("/api/v1/key?class=ip/32&key=203.0.113.7/32")
}

#[test]
fn spenders_are_listed_by_class_with_their_rules() {
    let gate = Gate::start(RULES);
    for number in 0..5 {
        assert_eq!(from(&gate, "203.0.113.7"), if number < 2 { 200 } else { 429 });
    }
    from(&gate, "198.51.100.1");
    let mut buckets = Value::Null;
    eventually("spenders", || {
        buckets = gate.json("/api/v1/buckets?class=ip/32&top=50");
        buckets["buckets"].as_array().unwrap().len() == 2
    });
    let offender = buckets["buckets"].as_array().unwrap().iter().find(|one| one["key"] == "203.0.113.7/32").unwrap();
    assert_eq!((&offender["refused"], &offender["requests"]), (&json!(3), &json!(5)));
    assert_eq!(offender["rules"][0]["decision"], "refuse");
    assert!(offender["rules"][0]["until"].is_string());
    for (class, keys) in [("ip/24", 2), ("ip/16", 2), ("user-agent", 1)] {
        let shown = gate.json(&format!("/api/v1/buckets?class={class}"));
        assert_eq!(shown["buckets"].as_array().unwrap().len(), keys, "{class}");
    }
    assert_eq!(gate.json("/api/v1/buckets?class=ip/32&search=198")["buckets"].as_array().unwrap().len(), 1);
    assert_eq!(gate.json("/api/v1/buckets?class=ip/32&top=1")["buckets"].as_array().unwrap().len(), 1);
    assert_eq!(gate.get("/api/v1/buckets?class=nonsense").status, 404);
    assert_eq!(gate.get("/api/v1/buckets?top=many").status, 400);
}

#[test]
fn explain_returns_the_decision_of_each_rule_and_charges_nothing() {
    let gate = Gate::start(RULES);
    let question =
        json!({ "client": "203.0.113.7", "method": "GET", "path": "/page", "headers": { "User-Agent": "x" } });
    for _ in 0..5 {
        let answer = gate.post("/api/v1/explain", &question).json();
        assert_eq!((&answer["decision"], &answer["rules"].as_array().unwrap().len()), (&json!("admit"), &2));
        assert_eq!(answer["rules"][0]["remaining"], 2);
    }
    from(&gate, "203.0.113.7");
    from(&gate, "203.0.113.7");
    let answer = gate.post("/api/v1/explain", &question).json();
    let queue = &answer["queue"];
    assert_eq!((&queue["decision"], &queue["wait_ms"], &queue["in_force"]), (&json!("admit"), &json!(0), &json!(true)));
    assert_eq!((&answer["decision"], &answer["rule"]), (&json!("refuse"), &json!("api")));
    assert_eq!((&answer["reason"], &answer["remaining"]), (&json!("over-limit"), &json!(0)));
    assert!(answer["retry_after_ms"].as_u64().unwrap() > 3_000_000);
    // As the page of a key without an address sends it.
    let other = gate.post("/api/v1/explain", &json!({ "client": null, "path": "/" })).json();
    assert_eq!((&other["reason"], &other["rule"]), (&json!("no-rule"), &Value::Null));
}

#[test]
fn explain_names_the_band_if_no_rule_applies() {
    let gate = Gate::start("[gate.bands]\npin = 'critical'\n");
    let answer = gate.post("/api/v1/explain", &json!({ "client": "203.0.113.7", "path": "/" })).json();
    assert_eq!((&answer["reason"], &answer["band"]), (&json!("no-rule"), &json!("critical")));
}

#[test]
fn explain_rejects_a_request_without_a_client_and_names_unknown_fields() {
    let gate = Gate::start(RULES);
    for (question, detail) in [
        (json!({}), "`client` is missing: set it to the address of the client"),
        (json!({ "path": "/" }), "`client` is missing: set it to the address of the client"),
        (json!({ "client": " " }), "`client` is missing: set it to the address of the client"),
        (json!({ "client": "x" }), "`client` must be an IP address"),
        (
            json!({ "client": "203.0.113.7", "pth": "/" }),
            "unknown field `pth`: the fields are client, method, path, headers, attributes, cost_ms",
        ),
    ] {
        let answer = gate.post("/api/v1/explain", &question);
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(detail)), "{question}");
    }
}

#[test]
fn the_key_of_an_address_may_be_written_without_its_prefix() {
    let gate = Gate::start(RULES);
    let statuses: Vec<_> = (0..3).map(|_| from(&gate, "203.0.113.7")).collect();
    assert_eq!(statuses, [200, 200, 429]);
    for (class, key, shown) in [("ip/32", "203.0.113.7", "203.0.113.7/32"), ("ip/24", "203.0.113.7", "203.0.113.0/24")]
    {
        eventually(shown, || {
            let page = gate.json(&format!("/api/v1/key?class={class}&key={key}"));
            (&page["key"], &page["bucket"]["key"]) == (&json!(shown), &json!(shown))
        });
    }
}

#[test]
fn explain_normalises_a_path_as_the_gate_does() {
    let rule =
        "[[rule]]\nname = 'login'\nclass = 'ip/32'\nwhen = { path = '/login' }\nwindow = { max = 1, per = '1h' }\n";
    let gate = Gate::start(rule);
    for (path, expect) in [("/login", 1), ("//login/?x", 1), ("/%6cogin;x", 1), ("/x/..;/login", 1), ("/logout", 0)] {
        let answer = gate.post("/api/v1/explain", &json!({ "client": "203.0.113.7", "path": path })).json();
        assert_eq!(answer["rules"].as_array().unwrap().len(), expect, "{path}");
    }
}

#[test]
fn a_key_can_be_cleared_and_exempted_for_a_while() {
    let gate = Gate::start(RULES);
    let before: Vec<_> = (0..3).map(|_| from(&gate, "203.0.113.7")).collect();
    assert_eq!(before, [200, 200, 429]);
    assert_eq!(key(&gate)["rules"][0]["decision"], "refuse");
    let which = json!({ "class": "ip/32", "key": "203.0.113.7/32", "note": "called us" });
    assert_eq!(gate.post("/api/v1/key/clear", &which).json()["rules"], 1);
    assert_eq!(key(&gate)["rules"][0]["remaining"], 2);
    let statuses: Vec<_> = (0..3).map(|_| from(&gate, "203.0.113.7")).collect();
    assert_eq!(statuses, [200, 200, 429]);

    let exempt = json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": 600_000, "note": "a migration" });
    assert_eq!(gate.post("/api/v1/key/exempt", &exempt).status, 200);
    assert!(key(&gate)["exempt_until"].is_string());
    assert_eq!((from(&gate, "203.0.113.7"), from(&gate, "203.0.113.7")), (200, 200));
    let end = json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": 0 });
    assert_eq!(gate.post("/api/v1/key/exempt", &end).status, 200);
    assert_eq!(from(&gate, "203.0.113.7"), 429);
    let changes = gate.json("/api/v1/audit")["changes"].as_array().unwrap().len();
    assert_eq!(changes, 3);

    for wrong in [
        json!({}),
        json!({ "class": "ip/32", "key": "x", "for_ms": 1 }),
        json!({ "class": "nonsense", "key": "x", "for_ms": 1 }),
        json!({ "class": "ip/32", "key": "203.0.113.7/32" }),
        json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": -1 }),
        json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": 1e12 }),
    ] {
        assert_eq!(gate.post("/api/v1/key/exempt", &wrong).status, 400, "{wrong}");
    }
}

#[test]
fn status_history_and_settings_are_returned() {
    let gate = Gate::start(RULES);
    assert_eq!(from(&gate, "203.0.113.7"), 200);
    let status = gate.json("/api/v1/status");
    assert_eq!(
        (&status["role"], &status["ready"], &status["band"]["name"]),
        (&json!("gate"), &json!(true), &json!("normal"))
    );
    assert_eq!(status["requests"]["total"], 1);
    assert_eq!(status["backends"].as_array().unwrap().len(), 1);
    eventually("history", || !gate.json("/api/v1/history?step=1")["samples"].as_array().unwrap().is_empty());
    assert_eq!(gate.get("/api/v1/history?step=0").status, 400);
    let config = gate.json("/api/v1/config");
    assert!(config["file"].as_str().unwrap().ends_with("tollgate.toml"));
    let tables: Vec<_> =
        config["tables"].as_array().unwrap().iter().map(|table| table["table"].as_str().unwrap()).collect();
    assert_eq!(tables, ["[gate]", "[[rule]]", "[[rule]]"]);
    assert_eq!(config["reload"], Value::Null);
    std::fs::write(gate.path().join("tollgate.toml"), "nonsense = 1\n").unwrap();
    let hang_up = std::process::Command::new("kill").arg("-HUP").arg(gate.id().to_string()).status().unwrap();
    assert!(hang_up.success());
    eventually("the reload is reported", || gate.json("/api/v1/status")["reload"]["ok"] == json!(false));
    assert!(gate.json("/api/v1/config")["reload"]["faults"].as_str().unwrap().contains("nonsense"));
}

#[test]
fn events_are_sent_every_second() {
    use std::io::{BufRead, BufReader, Write};
    let gate = Gate::start(RULES);
    let mut stream = std::net::TcpStream::connect(gate.admin).unwrap();
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", gate.admin).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).filter(|line| line.starts_with("data: "));
    let total = |line: String| {
        let status: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
        status["requests"]["total"].as_u64().unwrap()
    };
    assert_eq!(total(lines.next().unwrap()), 0);
    from(&gate, "203.0.113.7");
    assert!(lines.take(5).map(total).any(|total| total == 1));
}

#[test]
fn a_past_refusal_is_explained_after_its_limit_has_recovered() {
    let rules = "trusted_proxies = [\"127.0.0.1\"]\n\
        [[rule]]\nname = \"agents\"\nclass = \"user-agent\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    let gate = Gate::start(rules);
    let statuses: Vec<_> = (0..4).map(|_| from(&gate, "203.0.113.7")).collect();
    assert_eq!(statuses, [200, 429, 429, 429]);
    let cleared = json!({ "class": "user-agent", "key": "tester", "note": "they called" });
    assert_eq!(gate.post("/api/v1/key/clear", &cleared).status, 200);
    assert_eq!(from(&gate, "203.0.113.7"), 200, "the limit has recovered");
    // The rule tells user agents apart, and the operator knows the address.
    let question = json!({ "client": "203.0.113.7" });
    let explained = gate.post("/api/v1/explain", &question).json();
    let pages = ["class=ip/32&key=203.0.113.7", "class=ip/24&key=203.0.113.0/24", "class=user-agent&key=tester"];
    let pages = pages.map(|page| gate.json(&format!("/api/v1/key?{page}")));
    for answer in pages.iter().chain([&explained]) {
        let refusals = answer["refusals"].as_array().unwrap();
        let [refusal] = &refusals[..] else { panic!("one: {refusals:?}") };
        assert_eq!((&refusal["rule"], &refusal["reason"]), (&json!("agents"), &json!("over-limit")));
        assert_eq!((&refusal["count"], &refusal["allowed"]), (&json!(3), &json!(1)));
        assert_eq!((&refusal["class"], &refusal["key"]), (&json!("user-agent"), &json!("tester")));
        assert!(refusal["first_at"].as_str().unwrap() <= refusal["last_at"].as_str().unwrap());
    }
    assert_eq!(gate.json("/api/v1/key?class=ip/32&key=203.0.113.8")["refusals"], json!([]));
}

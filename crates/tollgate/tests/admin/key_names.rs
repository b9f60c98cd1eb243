//! Keys that are long, not text, or only reported by others: they are found under the text that is shown, and an
//! operation that reaches no key is an error.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Gate, PATIENCE, eventually};

const BY_AGENT: &str =
    "[[rule]]\nname = \"agents\"\nclass = \"user-agent\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

/// User agent of an iPhone: 137 bytes.
const IPHONE: &str = concat!(
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5_1 like Mac OS X) AppleWebKit/605.1.15 ",
    "(KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1"
);

/// Sends a request with this user agent, which may be any bytes.
fn with_agent(gate: &Gate, agent: &[u8]) -> u16 {
    let mut request =
        format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: ", gate.address).into_bytes();
    request.extend_from_slice(agent);
    request.extend_from_slice(b"\r\n\r\n");
    let mut stream = TcpStream::connect(gate.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}

/// The page of a key, requested as the console does.
fn page(gate: &Gate, class: &str, key: &str) -> Value {
    let query = serde_urlencoded::to_string([("class", class), ("key", key)]).unwrap();
    gate.json(&format!("/api/v1/key?{query}"))
}

/// Keys in the list of spenders, once there are `count`.
fn names(gate: &Gate, class: &str, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    eventually("spenders", || {
        let query = serde_urlencoded::to_string([("class", class)]).unwrap();
        let shown = gate.json(&format!("/api/v1/buckets?{query}"));
        names =
            shown["buckets"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect();
        names.len() == count
    });
    names
}

/// Asserts that a key that a rule of this class refused is found, cleared and exempted under the text that is shown.
fn is_found_cleared_and_exempted(gate: &Gate, class: &str, refused: impl Fn() -> u16) {
    assert_eq!((refused(), refused()), (200, 429));
    let name = &names(gate, class, 1)[0];
    let rule = page(gate, class, name)["rules"][0].clone();
    assert_eq!((&rule["decision"], &rule["remaining"]), (&json!("refuse"), &json!(0)), "{name}");
    let which = json!({ "class": class, "key": name, "note": "a test", "for_ms": 600_000 });
    let cleared = gate.post("/api/v1/key/clear", &which);
    assert_eq!((cleared.status, &cleared.json()["rules"]), (200, &json!(1)), "{name}");
    assert_eq!((refused(), refused()), (200, 429));
    assert_eq!(gate.post("/api/v1/key/exempt", &which).status, 200, "{name}");
    assert!(page(gate, class, name)["exempt_until"].is_string(), "{name}");
    assert_eq!((refused(), refused()), (200, 200));
}

#[test]
fn a_long_user_agent_is_found_cleared_and_exempted() {
    let gate = Gate::start(BY_AGENT);
    is_found_cleared_and_exempted(&gate, "user-agent", || with_agent(&gate, IPHONE.as_bytes()));
}

#[test]
fn a_key_that_is_not_text_is_found_cleared_and_exempted() {
    for agent in [&b"caf\xe9 \xff/1.0"[..], br"literally \xe9 and \x5c", br"C:\xampp\x", b"\\\xe9", b"\\x\xe9\\x4\xff"]
    {
        let gate = Gate::start(BY_AGENT);
        is_found_cleared_and_exempted(&gate, "user-agent", || with_agent(&gate, agent));
    }
}

/// Keys that are longer than the bound and start alike have different shortened texts.
#[test]
fn a_truncated_key_can_be_cleared_but_not_exempted() {
    let gate = Gate::start(BY_AGENT);
    let agents = ["x", "y"].map(|end| "long ".repeat(60) + end);
    for agent in &agents {
        assert_eq!((with_agent(&gate, agent.as_bytes()), with_agent(&gate, agent.as_bytes())), (200, 429));
    }
    let mut cut = Value::Null;
    eventually("both are spenders", || {
        cut = gate.json("/api/v1/buckets?class=user-agent")["buckets"].clone();
        cut.as_array().unwrap().iter().filter(|one| one["requests"] == 2).count() == 2
    });
    let (name, is_cut) = (cut[0]["key"].as_str().unwrap(), &cut[0]["cut"]);
    assert_eq!((name.len(), is_cut), (255, &json!(true)));
    assert_ne!(cut[0]["key"], cut[1]["key"]);
    let page = page(&gate, "user-agent", name);
    let rules = page["rules"].as_array().unwrap();
    assert_eq!((&page["cut"], rules.len(), &rules[0]["decision"]), (&json!(true), 1, &json!("refuse")));
    let which = json!({ "class": "user-agent", "key": name, "note": "a test", "for_ms": 600_000 });
    let exempted = gate.post("/api/v1/key/exempt", &which);
    assert!(exempted.status == 400 && exempted.body.contains("255 bytes"), "{}", exempted.body);
    assert_eq!(gate.post("/api/v1/key/clear", &which).json()["rules"], 1);
    let mut statuses = agents.each_ref().map(|agent| with_agent(&gate, agent.as_bytes()));
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429], "one of them was cleared");
    // With the complete key, everything works.
    let whole = json!({ "class": "user-agent", "key": agents[0], "note": "a test", "for_ms": 600_000 });
    assert_eq!(gate.post("/api/v1/key/exempt", &whole).status, 200);
    assert_eq!(agents.each_ref().map(|agent| with_agent(&gate, agent.as_bytes())), [200, 429]);
}

#[test]
fn clearing_and_exempting_an_unknown_key_fails_and_is_not_recorded() {
    let gate = Gate::start(BY_AGENT);
    for (class, key, status) in [("user-agent", "nobody", 404), ("ip/32", "203.0.113.7/32", 404), ("user", "u1", 404)] {
        let which = json!({ "class": class, "key": key, "note": "a test" });
        assert_eq!(gate.post("/api/v1/key/clear", &which).status, status, "{class}");
    }
    for (class, key) in [("ip/32", "203.0.113.7/32"), ("user", "u1"), ("nonsense", "x")] {
        let which = json!({ "class": class, "key": key, "note": "a test", "for_ms": 1000 });
        assert_eq!(gate.post("/api/v1/key/exempt", &which).status, 400, "{class}");
    }
    assert_eq!(gate.json("/api/v1/audit")["changes"], json!([]));
}

#[test]
fn an_exemption_applies_whatever_the_spelling_of_class_and_key() {
    let gate = Gate::start(
        "trusted_proxies = [\"127.0.0.1\"]\n[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"keys\"\nwhen = { path = \"/key\" }\nclass = \"header:X-Api-Key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n",
    );
    let exempt = |class: &str, key: &str| {
        let which = json!({ "class": class, "key": key, "note": "a test", "for_ms": 600_000 });
        assert_eq!(gate.post("/api/v1/key/exempt", &which).status, 200, "{class} {key}");
    };
    exempt("ip/32", "2001:DB8::1");
    exempt("header:X-API-KEY", "k1");
    let statuses = |path: &str, fields: &[(&str, &str)]| [(); 3].map(|()| gate.request(path, fields).status);
    assert_eq!(statuses("/", &[("X-Forwarded-For", "2001:db8::2")]), [200; 3]);
    assert_eq!(statuses("/key", &[("X-Forwarded-For", "2001:db8::3"), ("X-Api-Key", "k1")]), [200; 3]);
    assert_eq!(statuses("/", &[("X-Forwarded-For", "2001:db9::1")]), [200, 429, 429]);
}

#[test]
fn reported_refusals_are_shown_on_the_page_of_the_key() {
    let gate = Gate::start(BY_AGENT);
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }, { "class": "door + desk", "key": "a b c", "rejected": 3 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let user = page(&gate, "user", "u1");
    assert_eq!((&user["episode"]["rejected"], &user["flags"][0]["account"]), (&json!(1000), &json!("u1")));
    assert_eq!((&user["rules"], &user["bucket"]), (&json!([]), &Value::Null));
    assert_eq!(page(&gate, "door + desk", "a b c")["episode"]["rejected"], 3);
}

#[test]
fn a_key_of_several_parts_is_found_if_one_part_has_spaces() {
    let class = "user-agent+ip/32";
    let gate = Gate::start(&BY_AGENT.replace("\"user-agent\"", &format!("\"{class}\"")));
    is_found_cleared_and_exempted(&gate, class, || with_agent(&gate, b"Mozilla/5.0 (X11; Linux x86_64) \xe9"));
}

#[test]
fn the_page_of_a_key_has_all_rules_that_apply_and_the_excess() {
    let gate = Gate::start(
        "trusted_proxies = [\"127.0.0.1\"]\n\
        [[rule]]\nname = \"block\"\nclass = \"ip/16\"\nrate = { rate = \"1/h\", burst = 1 }\nmode = \"observe\"\n\
        [[rule]]\nname = \"network\"\nclass = \"ip/24\"\nbucket = { size = 9, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"one\"\nclass = \"ip/32\"\nbucket = { size = 2, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"agents\"\nclass = \"user-agent\"\nbucket = { size = 9, drip = 1, every = \"1h\" }\n",
    );
    for _ in 0..3 {
        gate.request("/", &[("X-Forwarded-For", "203.0.113.7")]);
    }
    let rules = |class: &str, key: &str| {
        let page = page(&gate, class, key);
        page["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["rule"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(rules("ip/32", "203.0.113.7/32"), ["block", "network", "one"]);
    assert_eq!(rules("ip/24", "203.0.113.0/24"), ["block", "network"]);
    assert_eq!(rules("ip/16", "203.0.0.0/16"), ["block"]);
    assert_eq!(rules("user-agent", ""), ["agents"]);
    let page = page(&gate, "ip/32", "203.0.113.7/32");
    let one = &page["rules"][2];
    assert_eq!((&one["class"], &one["over"], &one["remaining"]), (&json!("ip/32"), &json!(0), &json!(0)));
    assert!(one["until"].is_string());
}

#[test]
fn the_excess_over_a_limit_has_the_unit_of_the_limit() {
    let gate = Gate::start(
        "hold = { max = \"10h\" }\n[[rule]]\nname = \"slow\"\nclass = \"user-agent\"\nrate = { rate = \"1/h\", burst = 2 }\nhold = \"10h\"\n",
    );
    let held: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(gate.address).unwrap();
            write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nUser-Agent: eager\r\n\r\n", gate.address).unwrap();
            stream
        })
        .collect();
    eventually("two are held", || gate.json("/api/v1/status")["requests"]["holding"] == 2);
    let rule = page(&gate, "user-agent", "eager")["rules"][0].clone();
    assert_eq!((&rule["over"], &rule["remaining"], &rule["decision"]), (&json!(2), &json!(0), &json!("hold")));
    drop(held);
}

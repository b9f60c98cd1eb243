//! Rows of the tables of docs/coming-from that the configurations of those pages do not contain, in virtual time.

use serde_json::{Value, json};

use crate::program::root;
use crate::replay::decisions;

/// A rule with these lines, for each address unless they have a class.
fn rule(name: &str, lines: &str) -> String {
    let class = if lines.contains("class") { "" } else { "class = \"ip/32\"\n" };
    format!("[[rule]]\nname = \"{name}\"\n{class}{lines}\n")
}

/// A request of 203.0.113.7 at this time, with these fields in addition or instead.
fn request(at_ms: u64, fields: Value) -> String {
    let mut line = json!({ "at_ms": at_ms, "client": "203.0.113.7" });
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    format!("{line}\n")
}

/// The decisions in short: `a`, `h` and `r` for admit, hold and refuse.
fn short(test: &str, rules: &str, trace: &str) -> String {
    let all = decisions(test, rules, trace);
    all.iter().map(|decision| &decision["decision"].as_str().unwrap()[..1]).collect()
}

/// A page must have this text, so that the row and its test change together.
fn row(page: &str, text: &str) {
    let content = std::fs::read_to_string(root().join(format!("docs/coming-from/{page}.md"))).unwrap();
    assert!(
        content.lines().any(|line| line.starts_with('|') && line.contains(text)),
        "docs/coming-from/{page}.md: {text}"
    );
}

#[test]
fn nginxs_locations_are_patterns_of_paths() {
    row("nginx", "`when = { path = \"/login*\" }`");
    row("nginx", "`when = { path = [\"*.zip\", \"*.iso\"] }`");
    row("nginx", "also `/login/`");
    let window = "window = { max = 1, per = \"1h\" }\n";
    for (test, pattern, inside, outside) in [
        ("prefix", "\"/login*\"", &["/login", "/login/form", "/loginx"][..], &["/", "/x/login"][..]),
        ("exact", "\"/login\"", &["/login", "/login/", "/%6cogin"], &["/login/form", "/loginx", "/Login"]),
        ("ending", "[\"*.zip\", \"*.iso\"]", &["/a/b.zip", "/c.iso"], &["/b.zip.txt", "/b.ZIP", "/zip"]),
    ] {
        let rules = rule("r", &format!("when = {{ path = {pattern} }}\n{window}"));
        let path = |path: &&str| request(1, json!({ "path": path }));
        let trace: String = inside.iter().chain(outside).map(path).collect();
        let expect = "a".to_owned() + &"r".repeat(inside.len() - 1) + &"a".repeat(outside.len());
        assert_eq!(short(&format!("nginx-{test}"), &rules, &trace), expect, "{pattern}");
    }
}

#[test]
fn nginxs_bursts_and_delays_are_bursts_and_holds() {
    row("nginx", "| `burst=N delay=M` | `burst = M + 1`, `hold` of N - M intervals |");
    row(
        "nginx",
        "| `burst=N` | `burst = 1`, `hold` of N intervals, rounded up | `rate=30r/s burst=40` is `hold = \"1334ms\"`",
    );
    row("nginx", "| `burst=N nodelay` | `burst = N + 1`, `hold = \"0s\"` |");
    row("nginx", "| no `burst` | `burst = 1`, `hold = \"0s\"` |");
    let at_once = |count: usize| request(1, json!({})).repeat(count);
    for (test, limit, expect) in [
        ("delay", "rate = { rate = \"10/s\", burst = 4 }\nhold = \"200ms\"", (4, 2)),
        ("burst", "rate = { rate = \"30/s\", burst = 1 }\nhold = \"1334ms\"", (1, 40)),
        ("nodelay", "rate = { rate = \"10/s\", burst = 6 }\nhold = \"0s\"", (6, 0)),
        ("none", "rate = { rate = \"10/s\", burst = 1 }\nhold = \"0s\"", (1, 0)),
    ] {
        let got = short(&format!("nginx-{test}"), &rule("r", limit), &at_once(60));
        let (admitted, held) = expect;
        assert_eq!(got, "a".repeat(admitted) + &"h".repeat(held) + &"r".repeat(60 - admitted - held), "{limit}");
    }
    // Two directives in a location are two rules: both apply, and a refused request costs nothing at the other.
    let both = rule("slow", "rate = { rate = \"1/s\", burst = 1 }\nhold = \"0s\"")
        + &rule("quota", "window = { max = 2, per = \"1h\" }");
    let times = [0, 1, 2, 1000, 1001, 2000];
    let trace: String = times.iter().map(|at_ms| request(*at_ms, json!({}))).collect();
    assert_eq!(short("nginx-two", &both, &trace), "arrarr");
}

#[test]
fn nginxs_keys_are_classes() {
    row("nginx", "`$http_x_api_key` is `header:x-api-key`, `$cookie_sid` is `cookie:sid`, `$host` is `host`");
    row("nginx", "Several variables are joined with `+`");
    row("nginx", "| an empty key is not limited | a request without the header or cookie is not limited |");
    let limited = |class: &str, fields: [Value; 4]| {
        let rules = rule("r", &format!("class = \"{class}\"\nwindow = {{ max = 1, per = \"1h\" }}"));
        let trace: String = fields.into_iter().map(|fields| request(1, fields)).collect();
        short(&format!("nginx-key-{}", class.replace(['/', ':', '+'], "-")), &rules, &trace)
    };
    let header = |name: &str, value: &str| json!({ "headers": { name: value } });
    let key = |value: &str| header("x-api-key", value);
    assert_eq!(limited("header:x-api-key", [key("a"), key("a"), key("b"), json!({})]), "araa");
    assert_eq!(limited("header:x-api-key", [json!({}), json!({}), key("b"), key("b")]), "aaar");
    let sid = |value: &str| header("cookie", &format!("x=1; sid={value}"));
    assert_eq!(limited("cookie:sid", [sid("a"), sid("a"), sid("b"), json!({})]), "araa");
    let host = |value: &str| header("host", value);
    assert_eq!(
        limited("host", [host("a.example"), host("A.example:80"), host("b.example"), host("b.example")]),
        "arar"
    );
    let other = json!({ "client": "203.0.113.8", "headers": { "x-api-key": "a" } });
    assert_eq!(limited("ip/32+header:x-api-key", [key("a"), other, key("b"), key("a")]), "aaar");
}

#[test]
fn a_limit_of_everybody_is_one_of_each_address_family() {
    row("governor", "| `GlobalKeyExtractor` | `class = \"ip/0,0\"` |");
    row("governor", "| `RateLimiter::direct` | `class = \"ip/0,0\"` |");
    let rules = rule("r", "class = \"ip/0,0\"\nwindow = { max = 2, per = \"1h\" }");
    let from = |client: &str| request(1, json!({ "client": client }));
    let trace =
        ["203.0.113.7", "198.51.100.1", "192.0.2.9", "2001:db8::1", "2001:db9::1", "fd00::1"].map(from).concat();
    assert_eq!(short("governor-direct", &rules, &trace), "aaraar");
}

#[test]
fn governors_periods_and_methods_are_rates_and_conditions() {
    row("governor", "| `Quota::per_second(n)` of governor | `rate = { rate = \"n/s\", burst = n }` |");
    row("governor", "| `Quota::with_period(d)` | `rate = \"1 per d\"` |");
    row("governor", "| `methods` | `when = { method = [...] }` |");
    let rules = rule("r", "rate = { rate = \"3/s\", burst = 3 }\nhold = \"0s\"");
    let times = [0, 0, 0, 0, 333, 334, 334, 667];
    let trace: String = times.iter().map(|at_ms| request(*at_ms, json!({}))).collect();
    assert_eq!(short("governor-second", &rules, &trace), "aaarrara");
    let rules =
        rule("r", "when = { method = [\"POST\", \"PUT\"] }\nrate = { rate = \"1 per 2s\", burst = 1 }\nhold = \"0s\"");
    let by = |(at_ms, method): &(u64, &str)| request(*at_ms, json!({ "method": method }));
    let calls = [(0, "POST"), (1, "GET"), (2, "PUT"), (1999, "POST"), (2000, "PUT"), (2001, "DELETE")];
    assert_eq!(short("governor-methods", &rules, &calls.iter().map(by).collect::<String>()), "aarraa");
}

/// The announced waits, in seconds, of a client that returns when each wait ends and sends `max + 1` requests.
fn waits_s(test: &str, rules: &str, max: u64, count: usize) -> Vec<u64> {
    let (mut trace, mut at_ms, mut waits) = (String::new(), 0, Vec::new());
    while waits.len() < count {
        trace += &request(at_ms, json!({})).repeat(max as usize + 1);
        let last = decisions(test, rules, &trace).pop().unwrap();
        assert_eq!(last["decision"], "refuse", "{last}");
        let wait_ms = last["retry_after_ms"].as_u64().unwrap();
        waits.push(wait_ms.div_ceil(1000));
        at_ms += wait_ms;
    }
    waits
}

#[test]
fn screentinkers_other_limiters_are_windows() {
    row(
        "screentinker",
        "| OTA breaker, 3 checks in 60 s, cooldown 30 s to 30 min | `window` with `escalation = { backoff = \"30s\", backoff_max = \"30min\" }` |",
    );
    row("screentinker", "| content-ack limiter, 20 per 10 s | a `window` in a rule for that message's request");
    let breaker =
        rule("ota", "window = { max = 3, per = \"60s\" }\nescalation = { backoff = \"30s\", backoff_max = \"30min\" }");
    // The first block lasts until the window has room.
    assert_eq!(waits_s("screentinker-ota", &breaker, 3, 7), [60, 120, 240, 480, 960, 1800, 1800]);
    // Checks that are 25 s apart find room after 10 s, so the cooldown decides.
    let slow: String = [0, 25_000, 50_000, 50_001].iter().map(|at_ms| request(*at_ms, json!({}))).collect();
    let last = decisions("screentinker-ota-slow", &breaker, &slow).pop().unwrap();
    assert_eq!((&last["decision"], &last["retry_after_ms"]), (&"refuse".into(), &30_000.into()));
    let acks = rule("acks", "window = { max = 20, per = \"10s\" }");
    assert_eq!(short("screentinker-acks", &acks, &request(1, json!({})).repeat(25)), "a".repeat(20) + "rrrrr");
}

#[test]
fn an_operators_block_admits_one_connection_a_day() {
    row(
        "screentinker",
        "`class = \"header:x-device-id\"`, `when = { header = { x-device-id = \"THE-ID\" } }` and \
         `rate = { rate = \"1/d\", burst = 1 }` | one connection a day",
    );
    let block = rule(
        "blocked",
        "class = \"header:x-device-id\"\n\
         when = { header = { x-device-id = \"THE-ID\" } }\nrate = { rate = \"1/d\", burst = 1 }",
    );
    let hour_ms = 3_600_000;
    let connect = |hour: u64, device: &str| request(hour * hour_ms, json!({ "headers": { "x-device-id": device } }));
    let trace = [
        connect(0, "THE-ID"),
        connect(1, "THE-ID"),
        connect(1, "another"),
        connect(23, "THE-ID"),
        connect(24, "THE-ID"),
    ]
    .concat();
    assert_eq!(short("screentinker-block", &block, &trace), "arara");
}

#[test]
fn smockrons_intervals_are_rates() {
    row("smockron", "| `interval` | `rate = \"1 per 200ms\"` |");
    row("smockron", "`\"5/10 min\"` is `\"5 per 10min\"`");
    let rules = rule("r", "rate = { rate = \"1 per 200ms\", burst = 2 }\nhold = \"0s\"");
    let trace: String = [0, 0, 0, 199, 200, 201, 400].iter().map(|at_ms| request(*at_ms, json!({}))).collect();
    assert_eq!(short("smockron-interval", &rules, &trace), "aarrara");
    let rules = rule("r", "rate = { rate = \"5 per 10min\", burst = 1 }\nhold = \"0s\"");
    let trace: String = [0, 119_999, 120_000].iter().map(|at_ms| request(*at_ms, json!({}))).collect();
    assert_eq!(short("smockron-minutes", &rules, &trace), "ara");
}

#[test]
fn haproxys_windows_count_admitted_requests_and_exempt_trusted_clients() {
    row("haproxy", "| `acl trusted src -f FILE`, `unless trusted` | `unless = { client = [...] }` |");
    let rules = rule("r", "unless = { client = [\"10.0.0.0/8\", \"192.0.2.1\"] }\nwindow = { max = 2, per = \"10s\" }");
    // A client that keeps trying is admitted when the first two are ten seconds old.
    let trace: String = (0..12).map(|second| request(second * 1000, json!({}))).collect();
    assert_eq!(short("haproxy-window", &rules, &trace), "aarrrrrrrraa");
    let trusted = ["10.1.2.3", "192.0.2.1"].map(|client| request(1, json!({ "client": client })).repeat(4)).concat();
    assert_eq!(short("haproxy-trusted", &rules, &trusted), "aaaaaaaa");
}

#[test]
fn fail2bans_ignored_addresses_are_never_refused() {
    row("fail2ban", "| `ignoreip` | `unless = { client = [...] }` |");
    let page = std::fs::read_to_string(root().join("docs/coming-from/fail2ban.md")).unwrap();
    let rules = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let login = |client: &str| request(1, json!({ "client": client, "method": "POST", "path": "/login" })).repeat(7);
    assert_eq!(short("fail2ban-ignored", rules, &login("10.1.2.3")), "aaaaaaa");
    assert_eq!(short("fail2ban-others", rules, &login("11.1.2.3")), "aaaaarr");
}

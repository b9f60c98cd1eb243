//! Other spellings of a request do not bypass rules.

use crate::support::{Backend, Gate, http2, roundtrip};

/// A gate with a rule that admits one request per hour and client address.
fn gate(backend: &Backend, condition: &str) -> Gate {
    let rule = "[[rule]]\nname = 'once'\nclass = 'ip/32'\nwindow = { max = 1, per = '1h' }\n";
    Gate::with(backend, &format!("h2c = true\n{rule}{condition}"))
}

/// Spellings that some backend interprets as `/login`.
const LOGIN: [&str; 24] = [
    "/login",
    "/%6cogin",
    "/%6Cogin?next=/",
    "//login",
    "/./login",
    "/x/../login",
    "/login/",
    "/login;x",
    "/login;x/?y",
    "/%2flogin",
    "/%256cogin",
    "/\\login",
    "/x/..;/login",
    "/x/%2e%2e/login",
    "/x/%252e%252e/login",
    "/login/x//../..",
    "/login/x%2fy/..",
    "http://site//login",
    "//a/login",
    "/\\a/login",
    "///a:80/login/",
    "/%2fa/%6cogin",
    "http://site//a/login",
    "/login%0a",
];

#[test]
fn a_spelling_of_a_path_does_not_bypass_its_rule() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { path = '/login' }\n");
    assert_eq!(gate.get("/login").status, 200);
    for path in LOGIN {
        assert_eq!(gate.get(path).status, 429, "{path}");
    }
    for path in ["/", "/logout", "/Login", "/login/x", "/xlogin", "/a%2fb", "/a;b", "/a//b"] {
        assert_eq!(gate.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_spelling_of_a_path_does_not_bypass_its_rule_over_http2() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { path = '/login' }\n");
    http2::run(async {
        let mut sender = http2::connect(gate.address).await;
        let mut status = async |path: &str| {
            let request = http2::request("GET", path).body(()).unwrap();
            http2::send(&mut sender, request, b"").await.unwrap().head.status.as_u16()
        };
        assert_eq!(status("/login").await, 200);
        for path in LOGIN.iter().filter(|path| path.starts_with('/') && !path.contains('\\')) {
            assert_eq!(status(path).await, 429, "{path}");
        }
        assert_eq!(status("/logout").await, 200);
    });
}

#[test]
fn an_exemption_by_path_applies_to_that_path_only() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "unless = { path = '/static/*' }\n");
    assert_eq!(gate.get("/").status, 200);
    for path in ["/static/../login", "/static/..;/login", "/static/%2e%2e/login", "/static/..%2flogin", "/%73tatic/x"] {
        assert_eq!(gate.get(path).status, 429, "{path}");
    }
    for path in ["/static/a.css", "/static/", "/static//a%20b.css", "/static/a.css?x=/../"] {
        assert_eq!(gate.get(path).status, 200, "{path}");
    }
}

#[test]
fn an_exemption_by_path_ignores_a_host_before_it() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "unless = { path = '*static/*' }\n");
    assert_eq!(gate.get("/").status, 200);
    for path in ["//static/login", "/\\static/login", "/%2fstatic/login"] {
        assert_eq!(gate.get(path).status, 429, "{path}");
    }
    for path in ["/static/login", "//a/static/login"] {
        assert_eq!(gate.get(path).status, 200, "{path}");
    }
}

#[test]
fn every_spelling_of_a_path_is_one_key_and_is_forwarded_unchanged() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'each'\nclass = 'path'\nwindow = { max = 100, per = '1h' }\n";
    let gate = Gate::with(&backend, rule);
    for (count, path) in ["/a/b", "/a/b/", "//a/b", "/%61/b", "/a;x/b", "/c/../a/b"].into_iter().enumerate() {
        let left = gate.get(path).field("x-ratelimit-remaining").map(str::to_owned);
        assert_eq!(left, Some((99 - count).to_string()), "{path}");
        assert_eq!(backend.requests().pop().unwrap().path(), path);
    }
    assert_eq!(gate.get("/a/c").field("x-ratelimit-remaining"), Some("99"));
}

#[test]
fn a_method_in_lower_case_does_not_bypass_its_rule() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { method = 'POST' }\n");
    let post = |method: &str| {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        roundtrip(gate.connect(), request.as_bytes()).status
    };
    assert_eq!([post("POST"), post("post"), post("GET")], [200, 429, 200]);
}

/// Sends a request with these fields.
fn ask(gate: &Gate, fields: &str) -> crate::support::Response {
    roundtrip(gate.connect(), format!("GET / HTTP/1.1\r\n{fields}Connection: close\r\n\r\n").as_bytes())
}

/// A gate whose only rule admits 100 requests per key of `class`.
fn counting(backend: &Backend, class: &str) -> Gate {
    Gate::with(backend, &format!("[[rule]]\nname = 'each'\nclass = '{class}'\nwindow = {{ max = 100, per = '1h' }}\n"))
}

/// The remaining requests of the key with these fields. None if the rule does not apply.
fn left(gate: &Gate, fields: &str) -> Option<u32> {
    ask(gate, &format!("Host: a\r\n{fields}")).field("x-ratelimit-remaining").map(|left| left.parse().unwrap())
}

#[test]
fn a_cookie_is_found_in_every_line_and_forwarded() {
    let backend = Backend::saying("ok");
    let gate = counting(&backend, "cookie:sid");
    let fields = ["Cookie: sid=1\r\n", "Cookie: a=b\r\nCookie: sid=1\r\n", "Cookie: sid =1; a=b\r\n"];
    for (count, fields) in fields.into_iter().enumerate() {
        assert_eq!(left(&gate, fields), Some(99 - count as u32), "{fields}");
    }
    assert_eq!(left(&gate, "Cookie: sid=1; a=b; sid=2\r\nCookie: sid=3\r\n"), Some(96));
    assert_eq!(backend.requests().pop().unwrap().field("cookie"), Some("sid=1; a=b"));
    assert_eq!(left(&gate, "Cookie: a=b; a=c\r\n"), None);
    assert_eq!(backend.requests().pop().unwrap().field("cookie"), Some("a=b; a=c"));
}

#[test]
fn the_lines_of_a_header_that_a_rule_uses_are_combined_for_rule_and_backend() {
    let backend = Backend::saying("ok");
    let gate = counting(&backend, "header:x-key");
    assert_eq!(left(&gate, "X-Key: a\r\nX-Other: 1\r\nX-Key: b\r\nX-Other: 2\r\n"), Some(99));
    assert_eq!(left(&gate, "X-Key: a, b\r\n"), Some(98));
    assert_eq!(left(&gate, "X-Key: a\r\n"), Some(99));
    let request = backend.requests().remove(0);
    let values = |name: &str| {
        let fields = request.fields.iter().filter(|field| field.0 == name);
        fields.map(|field| field.1.clone()).collect::<Vec<_>>()
    };
    assert_eq!((values("x-key"), values("x-other")), (vec!["a, b".to_owned()], vec!["1".to_owned(), "2".to_owned()]));
}

#[test]
fn a_header_that_backends_confuse_with_that_of_a_rule_is_not_forwarded() {
    let backend = Backend::saying("ok");
    let gate = counting(&backend, "header:x-key");
    for name in ["X_Key", "X.Key", "X~Key"] {
        assert_eq!(left(&gate, &format!("{name}: a\r\nX_Other: 1\r\n")), None);
        let request = backend.requests().pop().unwrap();
        assert_eq!((request.field(&name.to_ascii_lowercase()), request.field("x_other")), (None, Some("1")), "{name}");
    }
}

#[test]
fn a_cookie_that_php_confuses_with_that_of_a_rule_is_not_forwarded() {
    let backend = Backend::saying("ok");
    let gate = counting(&backend, "cookie:my_sid");
    assert_eq!(left(&gate, "Cookie: my_sid=k; my.other=1\r\n"), Some(99));
    assert_eq!(backend.requests().pop().unwrap().field("cookie"), Some("my_sid=k; my.other=1"));
    for name in ["my.sid", "my sid", "my[sid", "my_sid[]", "my%5fsid", "my_sid%00x"] {
        assert_eq!(left(&gate, &format!("Cookie: {name}=k; a=1\r\n")), None, "{name}");
        assert_eq!(backend.requests().pop().unwrap().field("cookie"), Some("a=1"), "{name}");
    }
}

#[test]
fn every_spelling_of_a_cookie_or_parameter_has_the_limit_of_its_key() {
    let backend = Backend::saying("ok");
    let gate = counting(&backend, "cookie:sid");
    for (count, value) in ["abc", "%61bc", "\"abc\"", "a%62%63"].into_iter().enumerate() {
        assert_eq!(left(&gate, &format!("Cookie: sid={value}\r\n")), Some(99 - count as u32), "{value}");
        let forwarded = backend.requests().pop().unwrap();
        assert_eq!(forwarded.field("cookie"), Some(format!("sid={value}").as_str()));
    }
    // Values that servers read in different ways share a key.
    assert_eq!(left(&gate, "Cookie: sid=\"\\141bc\"\r\n"), Some(99));
    assert_eq!(left(&gate, "Cookie: sid=\"\\142bc\"\r\n"), Some(98));
    let gate = counting(&backend, "query:api_key");
    let left = |target: &str| gate.get(target).field("x-ratelimit-remaining").map(str::to_owned);
    assert_eq!(left("/?api_key=a").as_deref(), Some("99"));
    let spellings = ["/?api.key=a", "/?api+key=b", "/?api_key[]=c", "/?api_key=a&api%20key=d"];
    let expected = ["99", "98", "97", "96"].map(|left| Some(left.to_owned()));
    assert_eq!(spellings.map(left), expected);
    assert_eq!(left("/?apikey=a"), None);
}

#[test]
fn a_condition_on_a_cookie_applies_to_every_spelling_of_its_value() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { cookie = { plan = 'free' } }\n");
    let status = |value: &str| ask(&gate, &format!("Host: a\r\nCookie: plan={value}\r\n")).status;
    assert_eq!(["free", "%66ree", "\"free\"", "paid"].map(status), [200, 429, 429, 200]);
}

#[test]
fn white_space_around_a_header_value_over_http2_is_a_bad_request() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(
        &backend,
        "h2c = true\n[[rule]]\nname = 'each'\nclass = 'header:x-key'\nwindow = { max = 1, per = '1h' }\n",
    );
    http2::run(async {
        let mut sender = http2::connect(gate.address).await;
        let mut status = async |name: &str, value: &str| {
            let request = http2::request("GET", "/").header(name, value).body(()).unwrap();
            http2::send(&mut sender, request, b"").await.unwrap().head.status.as_u16()
        };
        assert_eq!([status("x-key", "a").await, status("x-key", "a").await], [200, 429]);
        for name in ["x-key", "x-other", "cookie", "host", "user-agent"] {
            for value in [" a", "a ", "\ta", "a\t", "  a  ", " "] {
                assert_eq!(status(name, value).await, 400, "{name}: {value:?}");
            }
        }
        assert_eq!(status("x-other", "a b").await, 200);
    });
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn a_host_is_the_same_in_any_case_with_a_dot_and_with_a_port() {
    let backend = Backend::saying("ok");
    for class in ["host", "header:host"] {
        let gate = counting(&backend, class);
        for (count, host) in
            ["site.example", "SITE.example", "site.example.", "Site.Example.:80"].into_iter().enumerate()
        {
            let left = ask(&gate, &format!("Host: {host}\r\n")).field("x-ratelimit-remaining").unwrap().to_owned();
            assert_eq!(left, (99 - count).to_string(), "{class} {host}");
        }
    }
    for condition in ["host = 'site.example'", "host = 'Site.example.'", "header = { host = 'site.example' }"] {
        let gate = gate(&backend, &format!("when = {{ {condition} }}\n"));
        for (count, host) in ["site.example", "SITE.example", "site.example.:8080"].into_iter().enumerate() {
            let status = ask(&gate, &format!("Host: {host}\r\n")).status;
            assert_eq!(status, if count == 0 { 200 } else { 429 }, "{condition} {host}");
        }
    }
}

#[test]
fn one_of_several_protocols_is_enough_for_a_rule_on_upgrades() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { upgrade = 'websocket' }\n");
    let statuses = ["websocket", "WebSocket, x", "x,websocket", "x\r\nUpgrade: websocket", "x", "websockets"]
        .map(|upgrade| ask(&gate, &format!("Host: a\r\nConnection: upgrade\r\nUpgrade: {upgrade}\r\n")).status);
    assert_eq!(statuses, [200, 429, 429, 429, 200, 200]);
}

#[test]
fn a_header_pattern_matches_in_any_case() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "when = { header = { user-agent = '*Bot*' } }\n");
    let statuses = ["Googlebot/2.1", "bingbot/2.0", "x BOT y", "Firefox"]
        .map(|agent| ask(&gate, &format!("Host: a\r\nUser-Agent: {agent}\r\n")).status);
    assert_eq!(statuses, [200, 429, 429, 200]);
}

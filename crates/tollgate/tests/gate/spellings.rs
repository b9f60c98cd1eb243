//! Requests that are written in another way than rules write them do not bypass the rules.

use crate::support::{Backend, Gate, http2, roundtrip};

/// A gate with a rule that admits one request per hour and client address.
fn gate(backend: &Backend, condition: &str) -> Gate {
    let rule = "[[rule]]\nname = 'once'\nclass = 'ip/32'\nwindow = { max = 1, per = '1h' }\n";
    Gate::with(backend, &format!("h2c = true\n{rule}{condition}"))
}

/// Spellings that some backend reads as `/login`.
const LOGIN: [&str; 18] = [
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
fn an_exemption_by_path_is_for_that_path_alone() {
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
fn a_path_is_one_key_however_it_is_written_and_arrives_as_it_was_sent() {
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

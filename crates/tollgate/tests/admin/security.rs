//! Fault 44: authentication and authorisation of the admin address.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Answer, Gate, ask};

const OPERATOR: &str = "an-operators-token-of-some-length";
const VIEWER: &str = "a-viewers-token-of-some-length";

fn guarded() -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("operator"), format!("{OPERATOR}\n")).unwrap();
    std::fs::write(folder.path().join("viewer"), VIEWER).unwrap();
    let config =
        "[admin]\ntoken_file = \"FOLDER/operator\"\nviewer_token_file = \"FOLDER/viewer\"\nhosts = \"gate.example\"\n";
    Gate::start_in(folder, config)
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Calls `act` for all values in parallel, because responses to wrong tokens are delayed.
fn at_once<T: Send, R: Send>(values: impl IntoIterator<Item = T>, act: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = values.into_iter().map(|value| scope.spawn(|| act(value))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn report(id: &str) -> String {
    json!({ "id": id, "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] }).to_string()
}

/// Logs in; returns the cookie and the CSRF token.
fn log_in(gate: &Gate, token: &str) -> (String, String) {
    let answer = ask(gate.admin, "POST", "/login", &[], &format!("token={token}&name=Ann"));
    assert_eq!(answer.status, 303, "{}", answer.body);
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let session = ask(gate.admin, "GET", "/api/v1/session", &[("Cookie", &cookie)], "").json();
    assert_eq!(session["name"], "Ann");
    (cookie, session["csrf"].as_str().unwrap().to_owned())
}

#[test]
fn without_a_token_only_health_checks_are_answered() {
    let gate = guarded();
    for path in
        ["/api/v1/status", "/api/v1/flags", "/api/v1/episodes", "/api/v1/events", "/metrics", "/api/v1/openapi.json"]
    {
        let answer = gate.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    at_once(["Bearer wrong", "Bearer", "Basic dXNlcjpwYXNz"], |wrong| {
        assert_eq!(ask(gate.admin, "GET", "/api/v1/status", &[("Authorization", wrong)], "").status, 401, "{wrong}");
    });
    assert_eq!(ask(gate.admin, "POST", "/api/v1/rejections", &[], &report("r1")).status, 401);
    assert_eq!(gate.get("/").status, 303, "a person is shown where to log in");
    assert_eq!((gate.get("/healthz").status, gate.get("/readyz").status, gate.get("/login").status), (200, 200, 200));
}

#[test]
fn a_session_is_found_among_cookies_of_the_same_name() {
    let gate = guarded();
    let (cookie, _) = log_in(&gate, VIEWER);
    for headers in [
        &[("Cookie", &*format!("tollgate_session=forged; {cookie}"))][..],
        &[("Cookie", "tollgate_session=forged"), ("Cookie", &cookie)],
        &[("Cookie", &format!("other=\u{e9}; {cookie}"))],
    ] {
        assert_eq!(ask(gate.admin, "GET", "/api/v1/status", headers, "").status, 200, "{headers:?}");
    }
    assert_eq!(ask(gate.admin, "GET", "/api/v1/status", &[("Cookie", "tollgate_session=forged")], "").status, 401);
}

#[test]
fn a_viewer_can_read_and_an_operator_can_change() {
    let gate = guarded();
    let as_of = |token: &str, method: &str, path: &str, body: &str| {
        ask(gate.admin, method, path, &[("Authorization", &bearer(token))], body).status
    };
    assert_eq!(as_of(VIEWER, "GET", "/api/v1/status", ""), 200);
    assert_eq!(as_of(VIEWER, "GET", "/metrics", ""), 200);
    assert_eq!(as_of(VIEWER, "POST", "/api/v1/explain", r#"{"client": "203.0.113.7"}"#), 200, "asking changes nothing");
    assert_eq!(as_of(VIEWER, "POST", "/api/v1/rejections", &report("r1")), 403);
    assert_eq!(as_of(OPERATOR, "POST", "/api/v1/rejections", &report("r1")), 202);
    let note = json!({ "note": "x" }).to_string();
    assert_eq!(as_of(VIEWER, "DELETE", "/api/v1/flags/u1", &note), 403);
    assert_eq!(as_of(OPERATOR, "DELETE", "/api/v1/flags/u1", &note), 200);
    let exempt = json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": 0 }).to_string();
    assert_eq!(as_of(VIEWER, "POST", "/api/v1/key/exempt", &exempt), 403);
}

#[test]
fn a_change_from_a_page_needs_the_csrf_token_and_the_right_origin() {
    let gate = guarded();
    let (cookie, csrf) = log_in(&gate, OPERATOR);
    let (own, foreign) = (format!("http://{}", gate.admin), "http://evil.example");
    let change = |headers: &[(&str, &str)]| {
        let mut all = vec![("Cookie", &*cookie)];
        all.extend(headers);
        ask(gate.admin, "POST", "/api/v1/rejections", &all, &report("r")).status
    };
    assert_eq!(change(&[("Origin", &own)]), 403, "no word");
    assert_eq!(change(&[]), 403, "no word and no origin");
    assert_eq!(change(&[("Origin", &own), ("X-Tollgate-Csrf", "wrong")]), 403);
    assert_eq!(change(&[("Origin", foreign), ("X-Tollgate-Csrf", &csrf)]), 403);
    assert_eq!(change(&[("Origin", "null"), ("X-Tollgate-Csrf", &csrf)]), 403);
    assert_eq!(change(&[("Sec-Fetch-Site", "cross-site"), ("X-Tollgate-Csrf", &csrf)]), 403);
    assert_eq!(change(&[("Origin", &own), ("X-Tollgate-Csrf", &csrf)]), 202);
    let foreign_login = ask(gate.admin, "POST", "/login", &[("Origin", foreign)], &format!("token={OPERATOR}"));
    assert_eq!(foreign_login.status, 403);
    let (viewer, viewers) = log_in(&gate, VIEWER);
    let by_viewer = [("Cookie", &*viewer), ("Origin", &*own), ("X-Tollgate-Csrf", &*viewers)];
    assert_eq!(ask(gate.admin, "POST", "/api/v1/rejections", &by_viewer, &report("v")).status, 403);
    assert_eq!(ask(gate.admin, "POST", "/logout", &[("Cookie", &cookie), ("X-Tollgate-Csrf", &csrf)], "").status, 303);
    assert_eq!(ask(gate.admin, "GET", "/api/v1/status", &[("Cookie", &cookie)], "").status, 401);
}

/// Without a token, access to loopback suffices, which all web pages opened on this machine have.
#[test]
fn without_a_token_a_foreign_page_cannot_make_changes() {
    let gate = Gate::start("");
    let change = |headers: &[(&str, &str)]| ask(gate.admin, "POST", "/api/v1/rejections", headers, &report("r")).status;
    assert_eq!(change(&[("Origin", "http://evil.example")]), 403);
    assert_eq!(change(&[("Origin", "null")]), 403);
    assert_eq!(change(&[("Sec-Fetch-Site", "cross-site")]), 403);
    let own = format!("http://{}", gate.admin);
    assert_eq!(change(&[("Origin", &own)]), 403, "our page shows its word");
    let csrf = gate.json("/api/v1/session")["csrf"].as_str().unwrap().to_owned();
    assert_eq!(change(&[("Origin", &own), ("X-Tollgate-Csrf", &csrf)]), 202);
    assert_eq!(change(&[]), 202, "a program on this machine");
}

#[test]
fn a_foreign_name_that_resolves_to_this_host_is_rejected() {
    let gate = guarded();
    let with = |host: &str, path: &str| {
        ask(gate.admin, "GET", path, &[("Host", host), ("Authorization", &bearer(OPERATOR))], "").status
    };
    for host in ["evil.example", "evil.example:8889", "127.0.0.1.evil.example", ""] {
        for path in ["/", "/api/v1/status", "/metrics", "/login"] {
            assert_eq!(with(host, path), 403, "{host} {path}");
        }
    }
    for host in ["localhost:8889", "127.0.0.1", "[::1]:1", "gate.example", "GATE.example:9"] {
        assert_eq!(with(host, "/api/v1/status"), 200, "{host}");
    }
    let open = Gate::start("");
    assert_eq!(ask(open.admin, "GET", "/api/v1/flags", &[("Host", "rebound.example")], "").status, 403);
}

#[test]
fn pages_load_nothing_foreign_and_cannot_be_framed() {
    let gate = Gate::start("");
    let page = gate.get("/").body;
    let script = page.split("src=\"").find(|part| part.contains("console.js\"")).unwrap().split('"').next().unwrap();
    assert_eq!(gate.get(script).status, 200, "{script}");
    for path in ["/", "/login", script, "/api/v1/status", "/nowhere"] {
        let answer = gate.get(path);
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let page = page + &gate.get("/login").body;
    for inline in ["<style", "style=", "onclick", "javascript:", "http://", "https://"] {
        assert!(!page.contains(inline), "{inline} in a page");
    }
    assert!(!page.contains("<script>"));
}

/// A throttle that rejected every token would let anybody lock out operators.
#[test]
fn a_valid_token_is_accepted_after_any_number_of_wrong_ones() {
    let gate = guarded();
    let guess = |token: &str| ask(gate.admin, "GET", "/api/v1/status", &[("Authorization", &bearer(token))], "").status;
    let answers = at_once(0..30, |number| guess(&format!("guess-{number}")));
    let count = |status| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!((count(401), count(429)), (10, 20));
    assert_eq!((guess(OPERATOR), guess(VIEWER)), (200, 200));
    assert_eq!(ask(gate.admin, "POST", "/login", &[], &format!("token={OPERATOR}")).status, 303);
    assert_eq!(ask(gate.admin, "POST", "/login", &[], "token=wrong").status, 429);
    let log = gate.logged("wrong token at the admin address");
    assert!(!log.contains("guess-"), "{log}");
    let lines = gate.log().iter().filter(|line| line.contains("wrong token at the admin address")).count();
    assert!(lines <= 10, "{lines} lines for 31 wrong tokens");
}

#[test]
fn the_response_to_a_wrong_token_is_delayed_and_a_valid_one_is_accepted_at_once() {
    let gate = guarded();
    let started = Instant::now();
    // More than are delayed at once.
    let answers = at_once(0..50, |number| {
        let (wrong, form) = (bearer(&format!("guess-{number}")), format!("token=guess-{number}"));
        let answer = match number % 2 {
            0 => ask(gate.admin, "GET", "/api/v1/status", &[("Authorization", &wrong)], ""),
            _ => ask(gate.admin, "POST", "/login", &[], &form),
        };
        assert_eq!(answer.header("connection"), Some("close"), "{:?}", answer.fields);
        if number == 0 {
            assert_eq!(ask(gate.admin, "GET", "/api/v1/status", &[("Authorization", &bearer(VIEWER))], "").status, 200);
        }
        started.elapsed() >= Duration::from_secs(1)
    });
    let delayed = answers.iter().filter(|is_delayed| **is_delayed).count();
    assert!(delayed >= 32, "{delayed}");
    let metrics = ask(gate.admin, "GET", "/metrics", &[("Authorization", &bearer(VIEWER))], "").body;
    assert!(metrics.contains("\ntollgate_admin_wrong_tokens_total 50\n"), "{metrics}");
}

#[test]
fn a_token_file_that_all_users_can_read_is_logged() {
    let gate = guarded();
    assert!(gate.logged("can read the token").contains("operator"));
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("operator");
    std::fs::write(&token, OPERATOR).unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let private = Gate::start_in(folder, "[admin]\ntoken_file = \"FOLDER/operator\"\n");
    assert!(!private.log().iter().any(|line| line.contains("can read the token")));
}

#[test]
fn beyond_loopback_a_short_token_is_rejected_by_check_and_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let (file, token) = (folder.path().join("tollgate.toml"), folder.path().join("token"));
    let run = |listen: &str, token_text: &str, words: &[&str]| {
        std::fs::write(&token, token_text).unwrap();
        let admin = format!("[admin]\nlisten = \"{listen}\"\ntoken_file = \"{}\"\n", token.display());
        std::fs::write(&file, format!("[gate]\nbackend = \"http://127.0.0.1:1\"\nlisten = \"127.0.0.1:0\"\n{admin}"))
            .unwrap();
        let mut command = Command::new("timeout");
        command.arg("120").arg(env!("CARGO_BIN_EXE_tollgate")).args(words).arg(&file);
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (words, code) in [(&["check"][..], 2), (&["gate", "--config"], 1)] {
        let (status, said) = run("0.0.0.0:0", "fifteen-bytes-x", words);
        assert_eq!(status, Some(code), "{said}");
        assert!(said.contains("shorter than 16 bytes") && !said.contains("fifteen"), "{said}");
    }
    assert_eq!(run("0.0.0.0:0", "sixteen-bytes-xx", &["check"]).0, Some(0));
    assert_eq!(run("127.0.0.1:0", "short", &["check"]).0, Some(0));
}

#[test]
fn beyond_loopback_a_token_is_required_to_start() {
    let start = |config: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, config.replace("FOLDER", &folder.path().display().to_string())).unwrap();
        // If it starts nevertheless, it would run until it is killed.
        let mut command = Command::new("timeout");
        command.args(["120", env!("CARGO_BIN_EXE_tollgate"), "gate", "--backend", "http://127.0.0.1:1"]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0", "--config"]).arg(&file);
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        command.output().unwrap()
    };
    for config in ["[gate]\n", "[admin]\nlisten = \"0.0.0.0:8889\"\n"] {
        let output = start(config);
        assert_eq!(output.status.code(), Some(2), "{config}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("token"), "{config}");
    }
    let absent = start("[admin]\ntoken_file = \"FOLDER/absent\"\n");
    assert_eq!(absent.status.code(), Some(1));
    let said = String::from_utf8_lossy(&absent.stderr);
    assert!(said.contains("absent"), "{said}");
    // No client was accepted and then cut off.
    assert!(!said.contains("\"listening\""), "{said}");
}

/// Keys chosen by clients: markup, control sequences, and text that looks like a log line.
const NAMES: [&str; 6] = [
    "<script>alert(1)</script>",
    "\u{1b}[31mred\u{1b}[0m",
    "a\r\nINFO fake",
    "quote\"back\\slash",
    "umlaut-\u{fc}\u{202e}",
    "\u{0}\u{7}\u{9b}2J",
];

#[test]
fn keys_are_escaped_in_json_and_in_the_log() {
    let gate = Gate::start("");
    let entries = NAMES.map(|name| json!({ "class": "user", "key": name, "rejected": 1000 }));
    let answer = gate.post("/api/v1/rejections", &json!({ "id": "r1\u{1b}[2J", "entries": entries }));
    assert_eq!((answer.status, &answer.json()["flagged"]), (202, &json!(NAMES)));
    let encoded = |name: &str| name.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    for name in NAMES {
        let note = json!({ "name": name, "note": name }).to_string();
        let cleared = ask(gate.admin, "DELETE", &format!("/api/v1/flags/{}", encoded(name)), &[], &note);
        assert_eq!((cleared.status, &cleared.json()["account"]), (200, &json!(name)));
    }
    let told = [
        answer,
        gate.get("/api/v1/flags?history=1"),
        gate.get("/api/v1/episodes"),
        gate.get("/api/v1/audit"),
        gate.get(&format!("/api/v1/key?class=user&key={}", encoded(NAMES[1]))),
        gate.get("/metrics"),
    ];
    for answer in &told {
        let raw = |c: char| c < ' ' && c != '\n';
        let is_escaped = |(_, value): &(String, String)| !value.contains('\u{1b}');
        assert!(!answer.body.contains(raw) && answer.fields.iter().all(is_escaped), "{}", answer.body);
    }
    let of = |answer: &Answer, list: &str, field: &str| {
        let all = answer.json()[list].as_array().unwrap().clone();
        all.iter().map(|one| one[field].as_str().unwrap().to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    let wanted = NAMES.map(str::to_owned).into();
    for (answer, list, field) in [
        (&told[1], "flags", "account"),
        (&told[1], "flags", "note"),
        (&told[2], "episodes", "key"),
        (&told[3], "changes", "by"),
    ] {
        assert_eq!(of(answer, list, field), wanted, "{list}");
    }
    // Six flags set, six cleared, six changes: each is one line of JSON.
    for text in ["account flagged", "flag cleared", "changed by an operator"] {
        gate.logged(text);
        crate::support::eventually(text, || {
            gate.log().iter().filter(|line| line.contains(text)).count() == NAMES.len()
        });
    }
    for line in gate.log() {
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line}");
        assert!(!line.contains(|c| c < ' '), "{line:?}");
    }
}

/// Keys that a client can send in a header: all characters but those that control a terminal.
#[test]
fn keys_from_headers_are_escaped_too() {
    let rule = "[[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [watch]\nflag_threshold = 1\naccount_class = \"header:x-api-key\"\n";
    let gate = Gate::start(rule);
    let names = [NAMES[0], NAMES[3], NAMES[4]];
    for name in names {
        let statuses = [(); 2].map(|()| gate.request("/", &[("X-Api-Key", name)]).status);
        assert_eq!(statuses, [200, 429], "{name}");
    }
    let escape = gate.request("/", &[("X-Api-Key", "\u{1b}[31mred")]);
    assert_eq!(escape.status, 400, "what drives a terminal is no part of a header");
    let mut flags = Value::Null;
    crate::support::eventually("flags", || {
        flags = gate.json("/api/v1/flags?top=10")["flags"].clone();
        flags.as_array().unwrap().len() == names.len()
    });
    let mut accounts: Vec<_> = flags.as_array().unwrap().iter().map(|flag| flag["account"].as_str().unwrap()).collect();
    accounts.sort_unstable();
    let mut wanted = names;
    wanted.sort_unstable();
    assert_eq!(accounts, wanted);
    for line in gate.log() {
        assert!(serde_json::from_str::<Value>(&line).is_ok() && !line.contains(|c| c < ' '), "{line:?}");
    }
}

/// An error names the address if it is in use.
#[test]
fn the_admin_address_is_on_loopback_by_default() {
    // The port may also be in use by another run of this test.
    let pause = || std::thread::sleep(Duration::from_millis(100));
    let _taken = (0..200).find_map(|_| std::net::TcpListener::bind("127.0.0.1:8889").map_err(|_| pause()).ok());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(
        &file,
        "[master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n[admin]\nhosts = \"x\"\n",
    )
    .unwrap();
    let file = file.display().to_string();
    let gate = ["gate", "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    for arguments in [&gate[..], &["master", "--config", &file]] {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_tollgate")]).args(arguments);
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot listen on the admin address 127.0.0.1:8889"), "{said}");
    }
    // A process that cannot bind the address creates no state directory.
    assert!(!folder.path().join("tollgate").exists());
}

#[test]
fn bodies_and_heads_are_bounded() {
    use std::io::{Read, Write};
    let gate = Gate::start("");
    let large = "x".repeat(65 << 10);
    assert_eq!(ask(gate.admin, "POST", "/api/v1/explain", &[], &large).status, 413);
    let mut stream = std::net::TcpStream::connect(gate.admin).unwrap();
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let _ = stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(70 << 10)).as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
    assert_eq!(gate.get("/api/v1/status").status, 200);
}

//! Permissions of tokens, and the authors of changes.

use serde_json::{Value, json};

use crate::support::{Answer, Gate, ask};

const OPERATOR: &str = "a-token-of-an-operator";
const REPORTER: &str = "a-token-of-a-reporter";

fn guarded() -> Gate {
    let folder = tempfile::tempdir().unwrap();
    for (name, token) in [("operator", OPERATOR), ("reporter", REPORTER)] {
        std::fs::write(folder.path().join(name), token).unwrap();
    }
    let rule = "[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    let admin = "[admin]\ntoken_file = \"FOLDER/operator\"\nreporter_token_file = \"FOLDER/reporter\"\n";
    Gate::start_in(folder, &format!("{rule}{admin}"))
}

fn by_token(gate: &Gate, token: &str, method: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    ask(gate.admin, method, path, &[("Authorization", &bearer)], &body.to_string())
}

fn report(id: &str) -> Value {
    json!({ "id": id, "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] })
}

#[test]
fn a_reporter_can_only_send_reports() {
    let gate = guarded();
    assert_eq!(by_token(&gate, REPORTER, "POST", "/api/v1/rejections", &report("r1")).status, 202);
    for (method, path) in [
        ("GET", "/api/v1/status"),
        ("GET", "/api/v1/flags"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "/api/v1/rejections"),
        ("POST", "/api/v1/explain"),
        ("POST", "/api/v1/key/clear"),
        ("DELETE", "/api/v1/flags/u1"),
        ("POST", "/logout"),
    ] {
        assert_eq!(by_token(&gate, REPORTER, method, path, &json!({ "note": "x" })).status, 403, "{method} {path}");
    }
    assert_eq!(by_token(&gate, REPORTER, "GET", "/healthz", &json!({})).status, 200);
    let login = ask(gate.admin, "POST", "/login", &[], &format!("token={REPORTER}&name=eve"));
    assert!(login.status == 403 && login.header("set-cookie").is_none(), "{:?}", login.fields);
    assert_eq!(by_token(&gate, OPERATOR, "GET", "/api/v1/flags", &json!({})).json()["total"], 1);
}

#[test]
fn changes_record_the_authentication_beside_the_given_name() {
    let gate = guarded();
    assert_eq!(by_token(&gate, REPORTER, "POST", "/api/v1/rejections", &report("r1")).status, 202);
    let login = ask(gate.admin, "POST", "/login", &[], &format!("token={OPERATOR}&name=ann"));
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap();
    let session = ask(gate.admin, "GET", "/api/v1/session", &[("Cookie", cookie)], "").json();
    let csrf = session["csrf"].as_str().unwrap();
    let body = json!({ "name": "bob", "note": "it was me" }).to_string();
    let fields = [("Cookie", cookie), ("X-Tollgate-Csrf", csrf)];
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/u1", &fields, &body).status, 200);
    let exempt =
        json!({ "class": "ip/32", "key": "203.0.113.7/32", "for_ms": 1000, "name": "carol", "note": "and this" });
    assert_eq!(by_token(&gate, OPERATOR, "POST", "/api/v1/key/exempt", &exempt).status, 200);
    let audit = |query: &str| by_token(&gate, OPERATOR, "GET", &format!("/api/v1/audit?{query}"), &json!({})).json();
    let who = |one: &Value| format!("{}: {}", one["by"].as_str().unwrap(), one["let_in"].as_str().unwrap());
    let who: Vec<_> = audit("")["changes"].as_array().unwrap().iter().map(who).collect();
    assert_eq!(
        who,
        ["carol: by the operator's token", "bob: logged in as ann, operator", "ann: by the operator's token"]
    );
    let found = audit("search=BOB&top=1");
    assert_eq!((&found["total"], &found["matching"]), (&json!(3), &json!(1)));
    assert!(found["changes"][0]["what"].as_str().unwrap().contains("it was me"));
}

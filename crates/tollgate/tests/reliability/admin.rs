//! Fault 44: access to the admin address.

use serde_json::json;

use crate::gate::{Gate, ask};

const TOKEN: &str = "a-token-of-sufficient-length";

fn guarded() -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    Gate::start_in(folder, "[admin]\ntoken_file = 'FOLDER/token'\n")
}

#[test]
fn fault_44_the_admin_address_needs_a_token_a_known_host_and_its_own_origin() {
    let gate = guarded();
    let bearer = format!("Bearer {TOKEN}");
    let change = |headers: &[(&str, &str)]| {
        let body = json!({"id": "r", "entries": [{"class": "user", "key": "u", "rejected": 1}]}).to_string();
        ask(gate.admin, "POST", "/api/v1/rejections", headers, &body).status
    };
    assert!(gate.admin.ip().is_loopback());
    assert_eq!(gate.get("/api/v1/status").status, 401);
    assert_eq!(change(&[]), 401);
    assert_eq!(change(&[("Authorization", &bearer)]), 202);
    let rebound = ask(gate.admin, "GET", "/api/v1/status", &[("Host", "evil.example"), ("Authorization", &bearer)], "");
    assert_eq!(rebound.status, 403, "{rebound:?}");
    let login = ask(gate.admin, "POST", "/login", &[], &format!("token={TOKEN}&name=Ann"));
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let session = ask(gate.admin, "GET", "/api/v1/session", &[("Cookie", &cookie)], "").json();
    let (csrf, own) = (session["csrf"].as_str().unwrap(), format!("http://{}", gate.admin));
    assert_eq!(change(&[("Cookie", &cookie), ("Origin", &own)]), 403, "no CSRF token");
    let foreign = [("Cookie", &*cookie), ("Origin", "http://evil.example"), ("X-Tollgate-Csrf", csrf)];
    assert_eq!(change(&foreign), 403);
    assert_eq!(change(&[("Cookie", &cookie), ("Origin", &own), ("X-Tollgate-Csrf", csrf)]), 202);
}

#[test]
fn fault_44_keys_with_markup_line_ends_and_escape_sequences_are_plain_text() {
    let gate = Gate::start("");
    let key = "<script>alert(1)</script>\r\nX: y\u{1b}[2J";
    let report = json!({"id": "r", "entries": [{"class": "user", "key": key, "rejected": 5000}]});
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let flags = gate.get("/api/v1/flags");
    assert_eq!(flags.json()["flags"][0]["account"], key, "JSON keeps the key as it is");
    assert!(flags.header("content-type").unwrap().starts_with("application/json"), "{flags:?}");
    assert_eq!(flags.header("x-content-type-options"), Some("nosniff"), "{flags:?}");
    let line = gate.logged("script");
    assert!(!line.chars().any(char::is_control), "{line:?}");
    let metrics = gate.get("/metrics").body;
    assert!(metrics.lines().all(|line| !line.starts_with("X: y")), "{metrics}");
}

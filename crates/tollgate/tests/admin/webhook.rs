//! Announcements of flags to a webhook.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::support::{Gate, PATIENCE, ask, eventually};

/// Accepts one request and responds with this status.
fn take(listener: &TcpListener, status: &str) -> (String, String) {
    let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    let mut bytes = [0; 4096];
    loop {
        let read = stream.read(&mut bytes).unwrap();
        text += std::str::from_utf8(&bytes[..read]).unwrap();
        if read == 0 || text.ends_with('}') {
            break;
        }
    }
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Whether the request has a valid signature.
fn is_signed(head: &str, body: &str) -> bool {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"a secret of both");
    let expect: String =
        ring::hmac::sign(&key, body.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    head.contains(&format!("X-Tollgate-Signature: sha256={expect}"))
}

#[test]
fn a_flag_is_announced_with_a_signature_and_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "a secret of both\n").unwrap();
    let config = format!(
        "[watch]\nwebhook = \"http://{}/flags?x=1\"\nwebhook_secret_file = \"FOLDER/secret\"\n",
        listener.local_addr().unwrap()
    );
    let gate = Gate::start_in(folder, &config);
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    take(&listener, "500 Not now");
    gate.logged("webhook failed: retrying");
    let (head, body) = take(&listener, "204 No Content");
    assert!(head.starts_with("POST /flags?x=1 HTTP/1.1\r\n"), "{head}");
    assert!(is_signed(&head, &body), "{head}");
    let said: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&said["event"], &said["account"]), (&json!("flag-set"), &json!("u1")));
    let note = json!({ "note": "fine" }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/u1", &[], &note).status, 200);
    let said: Value = serde_json::from_str(&take(&listener, "200 OK").1).unwrap();
    assert_eq!((&said["event"], &said["note"]), (&json!("flag-cleared"), &json!("fine")));
}

/// A response counts even if the connection stays open.
#[test]
fn an_announcement_is_accepted_with_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "a secret of both\n").unwrap();
    let config = format!(
        "[watch]\nwebhook = \"http://{}/\"\nwebhook_secret_file = \"FOLDER/secret\"\n",
        listener.local_addr().unwrap()
    );
    let gate = Gate::start_in(folder, &config);
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(waiting(&gate), "1");
    stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    eventually("it is written down that it was taken", || waiting(&gate) == "0");
    assert!(!gate.log().iter().any(|line| line.contains("was not taken")), "{:#?}", gate.log());
    drop(stream);
}

fn waiting(gate: &Gate) -> String {
    let metrics = gate.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_watch_announcements_waiting "));
    line.unwrap_or_else(|| panic!("{metrics}")).to_owned()
}

/// A kill while the webhook is unreachable: afterwards all announcements are sent, in order and once.
#[test]
fn pending_announcements_are_sent_after_a_kill() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "a secret of both\n").unwrap();
    let config = format!(
        "[watch]\nstate_dir = \"FOLDER/state\"\nwebhook = \"http://{address}/\"\nwebhook_secret_file = \"FOLDER/secret\"\n"
    );
    let gate = Gate::start_in(folder, &config);
    let report =
        |account: &str| json!({ "id": account, "entries": [{ "class": "user", "key": account, "rejected": 1000 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report("u1")).status, 202);
    let note = json!({ "note": "fine" }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/u1", &[], &note).status, 200);
    assert_eq!(gate.post("/api/v1/rejections", &report("u2")).status, 202);
    assert_eq!(waiting(&gate), "3");
    let gate = Gate::start_in(gate.kill(), &config);
    assert_eq!(waiting(&gate), "3");
    let listener = TcpListener::bind(address).unwrap();
    let mut said = Vec::new();
    for _ in 0..3 {
        let (head, body) = take(&listener, "200 OK");
        assert!(is_signed(&head, &body), "{head}");
        let body: Value = serde_json::from_str(&body).unwrap();
        said.push((body["event"].as_str().unwrap().to_owned(), body["account"].as_str().unwrap().to_owned()));
    }
    let expect = [("flag-set", "u1"), ("flag-cleared", "u1"), ("flag-set", "u2")];
    assert_eq!(said, expect.map(|(event, account)| (event.to_owned(), account.to_owned())));
    eventually("it is written down that all were taken", || waiting(&gate) == "0");
    let gate = Gate::start_in(gate.kill(), &config);
    assert_eq!(waiting(&gate), "0");
}

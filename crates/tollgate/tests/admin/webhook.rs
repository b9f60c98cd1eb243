//! Flags are announced to others.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::support::{Gate, PATIENCE, ask};

/// Takes one request, and answers it with this status.
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

#[test]
fn a_flag_is_announced_signed_and_tried_again() {
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
    let (head, body) = take(&listener, "204 No Content");
    assert!(head.starts_with("POST /flags?x=1 HTTP/1.1\r\n"), "{head}");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"a secret of both");
    let expect: String =
        ring::hmac::sign(&key, body.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(head.contains(&format!("X-Tollgate-Signature: sha256={expect}")), "{head}");
    let said: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&said["event"], &said["account"]), (&json!("flag-set"), &json!("u1")));
    let note = json!({ "note": "fine" }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/u1", &[], &note).status, 200);
    let said: Value = serde_json::from_str(&take(&listener, "200 OK").1).unwrap();
    assert_eq!((&said["event"], &said["note"]), (&json!("flag-cleared"), &json!("fine")));
}

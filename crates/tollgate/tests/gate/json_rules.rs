//! Rules by a value of a JSON body.

use crate::support::{Backend, Gate, Response, roundtrip};

fn gate(backend: &Backend) -> Gate {
    let rule = "[[rule]]\nname = 'user'\nclass = 'json:/user/id'\nbucket = { size = 2, drip = 1, every = '1h' }\n";
    Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{rule}", backend.url()))
}

fn post(gate: &Gate, content_type: &str, body: &str) -> Response {
    let head = format!("POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\nConnection: close\r\n");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    roundtrip(gate.connect(), request.as_bytes())
}

const JSON: &str = "application/json; charset=utf-8";

#[test]
fn a_value_of_the_body_is_the_key_and_the_backend_gets_the_body() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend);
    let statuses =
        |body: &str, count: usize| -> Vec<u16> { (0..count).map(|_| post(&gate, JSON, body).status).collect() };
    assert_eq!(statuses(r#"{"user": {"id": "ann"}}"#, 2), [200, 200]);
    assert_eq!(statuses(r#"{"x": [1, 2], "user": {"id": "\u0061nn"}}"#, 1), [429], "however it is written");
    assert_eq!(statuses(r#"{"user": {"id": "bob"}}"#, 1), [200]);
    assert_eq!(statuses(r#"{"user": {"id": 7}}"#, 3), [200, 200, 429]);
    assert_eq!(backend.requests().last().map(|request| request.body.clone()), Some(br#"{"user": {"id": 7}}"#.to_vec()));
    // Without the value, the rule does not apply.
    assert_eq!(statuses(r#"{"user": {}}"#, 3), [200, 200, 200]);
    assert_eq!(gate.get("/login").status, 200);

    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n9\r\n{\"user\":{\r\nc\r\n\"id\":\"ann\"}}\r\n0\r\n\r\n";
    assert_eq!(roundtrip(gate.connect(), chunked.as_bytes()).status, 429, "in chunks");
}

/// A body that the gate and the backend could read differently does not evade the rule.
#[test]
fn ambiguous_invalid_and_large_bodies_share_one_key() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend);
    let large = format!("{{\"pad\": \"{}\", \"user\": {{\"id\": \"new\"}}}}", "x".repeat(20_000));
    let hostile = [
        r#"{"user": {"id": "a"}, "user": {"id": "b"}}"#,
        r#"{"user": {"id": "c"},}"#,
        &large,
        &"[".repeat(10_000),
        r#"{"user": {"id": "d""#,
    ];
    let statuses: Vec<u16> = hostile.iter().map(|body| post(&gate, JSON, body).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    assert_eq!(post(&gate, "text/plain", "not JSON").status, 200, "another kind of body is not subject to the rule");
    assert_eq!(post(&gate, JSON, r#"{"user": {"id": "ann"}}"#).status, 200);
}

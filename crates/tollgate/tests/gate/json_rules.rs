//! Rules by a value of a JSON body.

use std::io::{BufReader, Write};
use std::time::{Duration, Instant};

use crate::support::client::read_any_response;
use crate::support::http2::{connect, request, run, send, send_body};
use crate::support::{Backend, Gate, Response, read_response, roundtrip};

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
        r#"{"User": {"ID": "e"}}"#,
        r#"{"user": {"id": "f"}, "USER": {"id": "g"}}"#,
        r#"{"user": {"id": ["h"]}}"#,
        r#"[{"user": {"id": "i"}}, {"user": {"id": "j"}}]"#,
    ];
    let statuses: Vec<u16> = hostile.iter().map(|body| post(&gate, JSON, body).status).collect();
    assert_eq!(statuses, [&[200; 2][..], &[429; 7]].concat());
    assert_eq!(post(&gate, JSON, r#"{"user": {"id": "ann"}}"#).status, 200);
}

/// Many backends parse the body as JSON whatever type it declares.
#[test]
fn a_declared_type_does_not_evade_the_rule() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend);
    let twice = r#"{"user": {"id": "a"}, "user": {"id": "b"}}"#;
    let large = format!("{{\"pad\": \"{}\", \"user\": {{\"id\": \"new\"}}}}", "x".repeat(20_000));
    assert_eq!([post(&gate, JSON, twice).status, post(&gate, JSON, twice).status], [200, 200]);
    for content_type in ["text/plain", "application/octet-stream", "", "application/json-seq"] {
        assert_eq!(post(&gate, content_type, twice).status, 429, "{content_type:?}");
        assert_eq!(post(&gate, content_type, &large).status, 429, "{content_type:?}");
    }
    // Backends disagree about which of two types is in force.
    let ann = r#"{"user": {"id": "ann"}}"#;
    let form = "application/x-www-form-urlencoded";
    assert_eq!(post(&gate, &format!("{form}\r\nContent-Type: {JSON}"), ann).status, 429);
    assert_eq!(post(&gate, &format!("{JSON}\r\nContent-Type: {form}"), ann).status, 429);
    assert_eq!(post(&gate, &format!("multipart/form-data, {JSON}"), twice).status, 429);
    // Forms and uploads of files are not JSON.
    assert_eq!(post(&gate, form, "user=ann&id=b").status, 200);
    assert_eq!(post(&gate, "Multipart/form-data; boundary=b", "--b--").status, 200);
    assert_eq!(post(&gate, "text/plain", ann).status, 200);
}

#[test]
fn a_small_body_behind_expect_has_its_own_key_and_one_100() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend);
    let ask = |user: &str| {
        let body = format!("{{\"user\": {{\"id\": \"{user}\"}}}}");
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n";
        let mut stream = gate.connect();
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        assert_eq!(read_any_response(&mut reader, false).unwrap().status, 100);
        stream.write_all(body.as_bytes()).unwrap();
        read_any_response(&mut reader, false).unwrap().status
    };
    for user in ["a", "b", "c"] {
        assert_eq!([ask(user), ask(user)], [200, 200], "{user}");
    }
    assert_eq!(ask("a"), 429);
    assert!(backend.requests().iter().all(|request| request.field("expect").is_none() && !request.body.is_empty()));
    // The gate does not ask for a large body before it decides.
    let large = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\nExpect: 100-continue\r\n\r\n";
    let twice = r#"{"user": {"id": "a"}, "user": {"id": "b"}}"#;
    assert_eq!([post(&gate, JSON, twice).status, post(&gate, JSON, twice).status], [200, 200]);
    assert_eq!(roundtrip(gate.connect(), large.as_bytes()).status, 429);
}

/// A client on a slow network does not share a key with others because its body has no `Content-Length`.
#[test]
fn json_without_a_length_is_awaited_and_has_its_own_key() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend);
    let twice = r#"{"user": {"id": "a"}, "user": {"id": "b"}}"#;
    while post(&gate, JSON, twice).status == 200 {}
    let ask = |head: &str, user: &str| {
        let mut stream = gate.connect();
        let fixed = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n";
        stream.write_all(format!("{fixed}{head}\r\n9\r\n{{\"user\":{{\r\n").as_bytes()).unwrap();
        // More than the pause and the wait after which other bodies of unknown length are given up.
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(format!("{:x}\r\n\"id\":\"{user}\"}}}}\r\n0\r\n\r\n", user.len() + 9).as_bytes()).unwrap();
        read_response(&mut BufReader::new(stream)).unwrap().status
    };
    let json = "Content-Type: application/vnd.api+json; charset=utf-8\r\n";
    assert_eq!([ask(json, "ann"), ask(json, "ann"), ask(json, "ann"), ask(json, "bob")], [200, 200, 429, 200]);
    assert_eq!(ask("Content-Type: application/json\r\nExpect: 100-continue\r\n", "eve"), 200);
    assert_eq!(ask("Content-Type: application/x-ndjson\r\n", "eve"), 429);
}

/// The gate waits at most 50 ms for a body of unknown length and of another type than JSON.
#[test]
fn a_body_that_does_not_end_is_awaited_once() {
    let (sender, arrivals) = std::sync::mpsc::channel();
    let backend = Backend::connecting(move |_| sender.send(Instant::now()).unwrap_or_default());
    let gate = gate(&backend);
    let mut shortest = Duration::MAX;
    for _ in 0..2 {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut stream = gate.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let began = Instant::now();
        // A pause of 5 ms ends the wait early.
        let arrived = loop {
            match arrivals.recv_timeout(Duration::from_millis(1)) {
                Ok(arrived) => break arrived,
                Err(_) => drop(stream.write_all(b"1\r\n \r\n")),
            }
            assert!(began.elapsed() < Duration::from_secs(10));
        };
        shortest = shortest.min(arrived.duration_since(began));
    }
    assert!(shortest < Duration::from_millis(90), "{shortest:?}");
}

/// One connection over HTTP/2, whose bodies come with and without a length, and in several frames.
#[test]
fn over_http_2_the_value_of_the_body_is_the_key_too() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'user'\nclass = 'json:/user/id'\nbucket = { size = 2, drip = 1, every = '1h' }\n";
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nh2c = true\nbackend = \"{}\"\n{rule}", backend.url()));
    run(async {
        let mut sender = connect(gate.address).await;
        let mut statuses = Vec::new();
        let ann = r#"{"user": {"id": "ann"}}"#;
        for (body, has_length) in [(ann, true), (ann, false), (ann, true), (r#"{"user": {"id": "bob"}}"#, false)] {
            let mut post = request("POST", "/login").header("content-type", JSON);
            if has_length {
                post = post.header("content-length", body.len());
            }
            let answer = send(&mut sender, post.body(()).unwrap(), body.as_bytes()).await.unwrap();
            statuses.push(answer.head.status.as_u16());
        }
        assert_eq!(statuses, [200, 200, 429, 200]);
        // A frame for each byte.
        let post = request("POST", "/login").header("content-length", ann.len()).body(()).unwrap();
        let (response, mut stream) = sender.clone().ready().await.unwrap().send_request(post, false).unwrap();
        for byte in ann.bytes() {
            stream.send_data(vec![byte].into(), false).unwrap();
        }
        send_body(&mut stream, b"", None).await.unwrap();
        assert_eq!(response.await.unwrap().status(), 429);
        // Two values share the key of all ambiguous bodies.
        let twice = br#"{"user": {"id": "a"}, "user": {"id": "b"}}"#;
        for status in [200, 200, 429] {
            let post = request("POST", "/login").header("content-type", JSON).body(()).unwrap();
            assert_eq!(send(&mut sender, post, twice).await.unwrap().head.status.as_u16(), status);
        }
    });
    let bodies: Vec<_> = backend.requests().iter().map(|request| request.body.len()).collect();
    assert_eq!(bodies, [23, 23, 23, 42, 42], "the backend gets the whole body of each admitted request");
}

/// A client that withholds a body delays no other client.
#[test]
fn over_http_2_a_withheld_body_delays_no_other_client() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'user'\nclass = 'json:/user/id'\nbucket = { size = 2, drip = 1, every = '1h' }\n";
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nh2c = true\nbackend = \"{}\"\n{rule}", backend.url()));
    run(async {
        let withholding = connect(gate.address).await;
        let held = request("POST", "/login").header("content-length", "100").body(()).unwrap();
        let (_response, mut stream) = withholding.ready().await.unwrap().send_request(held, false).unwrap();
        stream.send_data(b"{\"user\":".to_vec().into(), false).unwrap();
        let mut sender = connect(gate.address).await;
        for user in ["ann", "bob"] {
            let body = format!("{{\"user\": {{\"id\": \"{user}\"}}}}");
            let post = request("POST", "/login").header("content-length", body.len()).body(()).unwrap();
            let answer = send(&mut sender, post, body.as_bytes()).await.unwrap();
            assert_eq!(answer.head.status.as_u16(), 200);
        }
        assert_eq!(gate.get("/").status, 200);
    });
}

//! Slightly invalid responses of backends: forwarded if that is safe, otherwise refused with a reason.

use std::io::{BufReader, Read, Write};

use crate::support::backend::read_request;
use crate::support::client::read_response_to;
use crate::support::http2::{connect, request, run, send};
use crate::support::{Backend, Gate, Response, read_response};

/// A backend that sends these bytes for the first request of each connection, and keeps the connection open.
fn sending(answer: impl Into<Vec<u8>>) -> Backend {
    let answer = answer.into();
    Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_request(&mut reader).is_some() {
            stream.write_all(&answer).unwrap();
            let _ = reader.read(&mut [0]);
        }
    })
}

/// Sends two requests on one client connection.
fn twice(gate: &Gate, method: &str) -> [Response; 2] {
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    [(); 2].map(|()| {
        stream.write_all(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        read_response_to(&mut reader, method == "HEAD").unwrap()
    })
}

/// The excess bytes must never become the response to the next request.
#[test]
fn fault_11_excess_bytes_after_a_response_are_not_forwarded() {
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for (method, answer, status, body) in [
        ("GET", format!("HTTP/1.1 204 No Content\r\n\r\n{EVIL}"), 204, ""),
        ("GET", format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n{EVIL}"), 304, ""),
        ("HEAD", format!("HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n{EVIL}"), 200, ""),
        ("HEAD", format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n{EVIL}"), 200, ""),
        ("GET", format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{EVIL}"), 200, ""),
        ("GET", format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{EVIL}"), 200, "ok"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n".to_owned(), 200, "ok"),
        ("GET", format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{EVIL}"), 200, "ok"),
    ] {
        let backend = sending(answer.clone());
        let gate = Gate::before(&backend);
        for response in twice(&gate, method) {
            assert_eq!((response.status, response.text().as_str()), (status, body), "{method} {answer}");
        }
        assert_eq!(backend.connections(), 2, "{method} {answer}: a connection with excess bytes was reused");
        assert_eq!(gate.metric("tollgate_backend_failures_total"), 0);
    }
}

#[test]
fn a_response_with_hundreds_of_fields_is_forwarded() {
    let fields: String = (0..500).map(|number| format!("X-{number}: {number}\r\n")).collect();
    let answer = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
    let backend = Backend::answering(move |_, stream| stream.write_all(answer.as_bytes()));
    let gate = Gate::with(&backend, "h2c = true");
    for response in twice(&gate, "GET") {
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        for number in 0..500 {
            assert_eq!(response.field(&format!("x-{number}")), Some(number.to_string().as_str()));
        }
    }
    assert_eq!(backend.connections(), 1);
    run(async {
        let mut client = connect(gate.address).await;
        let answer = send(&mut client, request("GET", "/").body(()).unwrap(), b"").await.unwrap();
        assert_eq!((answer.head.status.as_u16(), &answer.body[..]), (200, &b"ok"[..]));
        assert_eq!((answer.field("x-0"), answer.field("x-499")), (Some("0"), Some("499")));
    });
}

#[test]
fn white_space_before_a_colon_is_removed_from_responses() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nX-A : b\r\nX-B \t: c\r\nContent-Length : 2\r\n\r\nok")
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\r\nx-a: b\r\n") && text.contains("\r\nx-b: c\r\n"), "{text}");
    assert!(text.contains("\r\ncontent-length: 2\r\n") && text.ends_with("\r\n\r\nok"), "{text}");
}

#[test]
fn a_502_is_logged_with_its_reason_and_a_storm_of_them_in_a_few_lines() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(request) = read_request(&mut reader) else { return };
        if request.path().starts_with("/two-lengths") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok");
        }
    });
    let gate = Gate::before(&backend);
    assert_eq!(gate.get("/two-lengths?a=b").status, 502);
    let line: serde_json::Value = serde_json::from_str(&gate.logged("answered 502")).unwrap();
    assert_eq!((&line["status"], &line["reason"]), (&502.into(), &"two different Content-Lengths".into()));
    assert_eq!((&line["path"], &line["method"]), (&"/two-lengths?a=b".into(), &"GET".into()));
    assert_eq!((&line["client"], &line["count"]), (&"127.0.0.1".into(), &1.into()));
    assert!(line["backend"].as_str().unwrap().contains(&backend.address.to_string()), "{line}");
    for _ in 0..100 {
        assert_eq!(gate.get("/closes").status, 502);
    }
    let lines = gate.end();
    let about = |line: &&String| line.contains("closed the connection without an answer");
    let counts: Vec<u64> = lines
        .iter()
        .filter(about)
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["count"].as_u64().unwrap())
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 100, "{counts:?}");
    assert!(counts.len() <= 12, "{counts:?}");
}

#[test]
fn a_503_a_504_and_a_truncated_response_are_logged_with_their_reasons() {
    let (_taken, address) = crate::support::closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    (0..4).for_each(|_| drop(gate.get("/")));
    assert!(gate.logged("answered 502: the backend cannot be reached").contains("onnection refused"));
    gate.logged("answered 503: no backend is up");
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(request) = read_request(&mut reader) else { return };
        if request.path() == "/half" {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        } else {
            let _ = reader.read(&mut [0]);
        }
    });
    let gate = Gate::with(&backend, "timeouts = { response_head = \"200ms\" }");
    assert_eq!(gate.get("/").status, 504);
    gate.logged("answered 504: the backend took too long");
    let mut stream = gate.connect();
    stream.write_all(b"GET /half HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_response(&mut BufReader::new(stream)).is_none());
    gate.logged("cut off an answer: the backend closed the connection in the middle");
}

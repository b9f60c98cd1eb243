//! HTTP/1 at the HTTP door: framing, reuse of connections, and bounds of time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::Doors;

const CONFIG: &str = "[doors]\nhttp = '127.0.0.1:0'\n\
    [[rule]]\nname = 'api'\nclass = 'identifier'\nbucket = { size = 1000, drip = 1, every = '1h' }\n";
const CHECK: &str = r#"{"rule": "api", "key": "u1"}"#;

fn start() -> (Doors, SocketAddr) {
    let mut doors = Doors::start(CONFIG);
    let door = doors.door("http");
    (doors, door)
}

fn connect(door: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// One response: its head, and as many bytes of a body as it announces.
fn response(stream: &mut TcpStream, has_body: bool) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&head)));
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; if has_body { length } else { 0 }];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// Everything that the door sends until it closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

fn with_length(body: &str) -> String {
    post(&format!("Content-Length: {}\r\n", body.len()), body)
}

#[test]
fn a_chunked_body_and_one_that_waits_for_100_are_read() {
    let (_doors, door) = start();
    let mut stream = connect(door);
    let (first, second) = CHECK.split_at(10);
    let chunks = format!("a\r\n{first}\r\n{:x};x=y\r\n{second}\r\n0\r\nTrailer: 1\r\n\r\n", second.len());
    let call = post("Transfer-Encoding: chunked\r\n", &chunks);
    // Byte by byte, so that every boundary falls between two reads.
    stream.set_nodelay(true).unwrap();
    call.bytes().for_each(|byte| stream.write_all(&[byte]).unwrap());
    let (head, body) = response(&mut stream, true);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("\"remaining\": 999"), "{head}{body}");
    assert!(head.contains("\r\ndate: ") && head.contains("\r\ncache-control: no-store\r\n"), "{head}");
    stream
        .write_all(post(&format!("Content-Length: {}\r\nExpect: 100-continue\r\n", CHECK.len()), "").as_bytes())
        .unwrap();
    assert_eq!(response(&mut stream, true).0, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(CHECK.as_bytes()).unwrap();
    let (head, body) = response(&mut stream, true);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("\"remaining\": 998"), "{head}{body}");
}

#[test]
fn pipelined_calls_get_their_responses_in_order_also_after_an_invalid_one() {
    let (_doors, door) = start();
    let mut stream = connect(door);
    let calls =
        [&with_length(CHECK), &with_length("no JSON"), "GET /v1/none HTTP/1.1\r\nHost: a\r\n\r\n", &with_length(CHECK)];
    stream.write_all(calls.concat().as_bytes()).unwrap();
    let answers: Vec<_> = (0..4).map(|_| response(&mut stream, true)).collect();
    let statuses: Vec<_> = answers.iter().map(|(head, _)| &head[9..12]).collect();
    assert_eq!(statuses, ["200", "400", "404", "200"]);
    assert!(answers[3].1.contains("\"remaining\": 998"), "{answers:?}");
}

#[test]
fn a_connection_is_kept_as_the_client_asks() {
    let (_doors, door) = start();
    let auth = |method: &str, version: &str, fields: &str| format!("{method} /v1/auth HTTP/{version}\r\n{fields}\r\n");
    let mut stream = connect(door);
    // A response to HEAD has no body, so the next response follows.
    stream.write_all(auth("HEAD", "1.1", "Host: a\r\n").replace("/v1/auth", "/v1/none").as_bytes()).unwrap();
    let (head, _) = response(&mut stream, false);
    assert!(head.starts_with("HTTP/1.1 404 ") && !head.contains("content-length: 0"), "{head}");
    stream.write_all(auth("GET", "1.0", "Connection: keep-alive\r\n").as_bytes()).unwrap();
    let (head, _) = response(&mut stream, true);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n"), "{head}");
    stream.write_all(auth("GET", "1.0", "").as_bytes()).unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.1 200 OK\r\nconnection: close\r\n"));
    let mut stream = connect(door);
    stream.write_all(auth("GET", "1.1", "Host: a\r\nConnection: close\r\n").as_bytes()).unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.1 200 OK\r\nconnection: close\r\n"));
}

#[test]
fn an_ambiguous_or_oversized_call_is_refused_and_closes_its_connection() {
    let (doors, door) = start();
    let large = "x".repeat(33 << 10);
    for (call, status) in [
        (post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "{}"), 400),
        (post("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"), 400),
        ("GET /v1/auth HTTP/1.1\nHost: a\n\n".to_owned(), 400),
        ("GET /v1/auth HTTP/1.1\r\n\r\n".to_owned(), 400),
        (post("Transfer-Encoding: gzip\r\n", ""), 501),
        (post("Transfer-Encoding: chunked\r\n", "x\r\n"), 400),
        (post("Content-Length: 131073\r\n", &"x".repeat(131_073)), 413),
        (post("Transfer-Encoding: chunked\r\n", &format!("20001\r\n{}", "x".repeat(131_073))), 413),
        (post(&format!("X: {large}\r\n"), ""), 431),
        (format!("GET /{large} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        ("GET /v1/auth HTTP/3.0\r\nHost: a\r\n\r\n".to_owned(), 505),
    ] {
        let mut stream = connect(door);
        stream.write_all(call.as_bytes()).unwrap();
        let text = rest(&mut stream);
        let shown = &call[..call.len().min(100)];
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {text}");
        assert!(text.contains("\r\nconnection: close\r\n") && text.contains("\"detail\":"), "{shown:?}: {text}");
    }
    assert_eq!(doors.metric("tollgate_door_malformed_total"), 11);
}

#[test]
fn a_body_that_does_not_arrive_is_waited_for_ten_seconds() {
    let (_doors, door) = start();
    let mut stream = connect(door);
    let begin = Instant::now();
    stream.write_all(post("Content-Length: 100\r\n", "{").as_bytes()).unwrap();
    let text = rest(&mut stream);
    assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("\r\nconnection: close\r\n"), "{text}");
    assert!((9..19).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

//! Hostile input: other clients are served, and memory does not grow.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::support::{Doors, call, check};

const CONFIG: &str = "[doors]\nhttp = '127.0.0.1:0'\nconnections = 64\n\
    [[rule]]\nname = 'api'\nclass = 'identifier'\nbucket = { size = 1000, drip = 1, every = '1h' }\n";

/// Pseudorandom bytes from a fixed seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn is_served(door: SocketAddr) {
    assert_eq!(check(door, &json!({"rule": "api", "key": "good", "toll": 0}))["remaining"], 1000);
}

#[test]
fn garbage_on_the_http_door_leaves_memory_flat_and_other_clients_served() {
    let mut doors = Doors::start(CONFIG);
    let door = doors.door("http");
    is_served(door);
    let before = doors.rss_kb();
    for seed in 0..200 {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(&noise(seed, 4096));
    }
    for (length, status) in [(200_000, 413), (131_073, 413), (131_072, 400)] {
        let answer = call(door, "POST", "/v1/check", &[], &" ".repeat(length));
        assert_eq!(answer.status, status, "{length}");
    }
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut stream = TcpStream::connect(door).unwrap();
    let _ = stream.write_all(head.as_bytes());
    let nested = "{\"a\": ".repeat(10_000);
    for bomb in ["[".repeat(100_000), format!("{{\"attributes\": {nested}"), format!("{{\"descriptors\": [{nested}")] {
        for path in ["/v1/check", "/v1/report", "/v1/load", "/json"] {
            assert_eq!(call(door, "POST", path, &[], &bomb).status, 400, "{path}");
        }
    }
    for seed in 0..200 {
        let text = String::from_utf8_lossy(&noise(seed, 300)).into_owned();
        assert_eq!(call(door, "POST", "/v1/check", &[], &format!("{{\"rule\": \"{text}")).status, 400);
    }
    is_served(door);
    let after = doors.rss_kb();
    assert!(after < before + 16_384, "{before} kB, then {after} kB");
}

#[test]
fn pipelined_calls_wait_until_the_client_reads_the_responses() {
    let mut doors = Doors::start(CONFIG);
    let door = doors.door("http");
    is_served(door);
    let before = doors.rss_kb();
    let calls = [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v1/auth HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/auth HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    ];
    for call in calls {
        let mut stream = TcpStream::connect(door).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let many = call.repeat((1 << 20) / call.len());
        // The door stops reading, or closes the connection, before it has taken everything.
        let error = (0..32).find_map(|_| stream.write_all(many.as_bytes()).err());
        assert!(error.is_some(), "the door read 32 MiB of {call:?}");
        is_served(door);
        let after = doors.rss_kb();
        assert!(after < before + 16_384, "{before} kB, then {after} kB by {call:?}");
    }
}

#[test]
fn a_connection_without_the_token_is_closed_after_its_first_response() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let mut doors = Doors::start_in(folder, "[doors]\nhttp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\n");
    let mut stream = TcpStream::connect(doors.door("http")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 401 ") && text.contains("\r\nconnection: close\r\n"), "{text}");
}

#[test]
fn silent_connections_are_closed_for_new_ones() {
    let mut doors = Doors::start(CONFIG);
    let door = doors.door("http");
    let mut good = TcpStream::connect(door).unwrap();
    let ask = b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\n{\"rule\":\"api\",\"key\":\"other\"}";
    let answered = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(ask).unwrap();
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&bytes[..read]));
    };
    answered(&mut good);
    // Half a head, half a body, or nothing at all: none of these connections closes by itself.
    let halves: [&[u8]; 3] = [b"POST /v1/check HT", b"POST /v1/check HTTP/1.1\r\nHost: a\r\n", b""];
    let silent: Vec<_> = (0..500)
        .map(|place| {
            let mut stream = TcpStream::connect(door).unwrap();
            stream.write_all(halves[place % 3]).unwrap();
            stream
        })
        .collect();
    is_served(door);
    // A connection with a valid call stays open while there are others.
    answered(&mut good);
    assert!(doors.metric("tollgate_door_connections_closed_total") >= 400);
    // The door has closed them itself, before the timeout of a head.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let read = stream.read(&mut [0]);
        !matches!(read, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    let closed = silent.iter().filter(|stream| is_closed(stream)).count();
    assert!(closed >= 400, "{closed}");
}

//! Hostile input: other clients are served, and memory does not grow.

use std::io::{Read, Write};
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
    for bomb in ["[".repeat(100_000), format!("{{\"attributes\": {}", "{\"a\": ".repeat(10_000))] {
        assert_eq!(call(door, "POST", "/v1/check", &[], &bomb).status, 400);
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
    drop(silent);
}

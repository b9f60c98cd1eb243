//! Ten thousand connections that send nothing useful: other clients are served, and memory does not grow.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::support::{Doors, check};

const CONNECTIONS: usize = 10_000;
/// File descriptors of this process beside the connections.
const OTHER_FILES: u64 = 500;
const CONFIG: &str = "[doors]\nhttp = '127.0.0.1:0'\nresp = '127.0.0.1:0'\ngrpc = '127.0.0.1:0'\n\
    [[rule]]\nname = 'api'\nclass = 'identifier'\nbucket = { size = 1000, drip = 1, every = '1h' }\n";

/// Beginnings of calls, for each door.
const HTTP: [&[u8]; 4] = [
    b"",
    b"POST /v1/check HT",
    b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
    b"\x16\x03\x01\x02\x00\x01",
];
const RESP: [&[u8]; 4] = [b"", b"*2\r\n$4\r\nPI", b"*6\r\n$11\r\nCL.THROTTLE\r\n$65536\r\nkey", b"CL.THROT"];
const GRPC: [&[u8]; 3] = [b"", b"PRI * HTTP/2.0\r\n\r\nSM", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"];

/// The number of connections that this process may have open at once.
fn allowed_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS as u64 + OTHER_FILES;
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let current = limit.current.unwrap_or(u64::MAX).max(wanted.min(maximum));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum }).unwrap();
    (current - OTHER_FILES).min(CONNECTIONS as u64) as usize
}

fn connect(door: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(door).unwrap();
    // The door may have closed it for another one already.
    let _ = stream.write_all(bytes);
    stream
}

fn answers(stream: &mut TcpStream, call: &[u8], reply: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(call).unwrap();
    let mut bytes = [0; 4096];
    let read = stream.read(&mut bytes).unwrap();
    assert!(bytes[..read].starts_with(reply), "{}", String::from_utf8_lossy(&bytes[..read]));
}

#[test]
fn ten_thousand_useless_connections_leave_memory_flat_and_other_clients_served() {
    let allowed = allowed_connections();
    let mut doors = Doors::start(CONFIG);
    let [http, resp, grpc] = ["http", "resp", "grpc"].map(|door| doors.door(door));
    let (ping, pong) = (b"PING\r\n", b"+PONG\r\n");
    let ask = b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\n{\"rule\":\"api\",\"key\":\"other\"}";
    let (mut good_resp, mut good_http) = (connect(resp, b""), connect(http, b""));
    answers(&mut good_resp, ping, pong);
    answers(&mut good_http, ask, b"HTTP/1.1 200 OK");
    let mut crowd = || {
        let beginnings = |place: usize| match place % 3 {
            0 => (http, HTTP[place / 3 % HTTP.len()]),
            1 => (resp, RESP[place / 3 % RESP.len()]),
            _ => (grpc, GRPC[place / 3 % GRPC.len()]),
        };
        let open: Vec<_> = (0..allowed).map(beginnings).map(|(door, bytes)| connect(door, bytes)).collect();
        // Connections with valid calls stay open, and new clients are served.
        answers(&mut good_resp, ping, pong);
        answers(&mut good_http, ask, b"HTTP/1.1 200 OK");
        answers(&mut connect(resp, b""), ping, pong);
        assert_eq!(check(http, &json!({"rule": "api", "key": "good", "toll": 0}))["remaining"], 1000);
        answers(&mut connect(grpc, GRPC[2]), b"", b"\0\0");
        drop(open);
    };
    // The first crowds use the memory of as many connections as the settings allow.
    crowd();
    crowd();
    let before = doors.rss_kb();
    crowd();
    let after = doors.rss_kb();
    assert!(after < before + 8_192, "{before} kB, then {after} kB");
    assert!(before < 300_000, "{before} kB");
    let connections = doors.metric("tollgate_door_connections");
    assert!(connections <= 4096, "{connections}");
}

#[test]
fn a_client_with_complete_commands_stays_connected_while_others_send_halves() {
    let mut doors = Doors::start(&CONFIG.replace("[doors]", "[doors]\nconnections = 64\nthreads = 1"));
    let resp = doors.door("resp");
    let mut good = connect(resp, b"");
    answers(&mut good, b"PING\r\n", b"+PONG\r\n");
    let halves: Vec<_> = (0..300).map(|_| connect(resp, b"*2\r\n$4\r\nPI")).collect();
    answers(&mut connect(resp, b""), b"PING\r\n", b"+PONG\r\n");
    answers(&mut good, b"PING\r\n", b"+PONG\r\n");
    drop(halves);
}

#[test]
fn a_command_that_arrives_byte_by_byte_is_not_waited_for() {
    let mut doors = Doors::start(CONFIG);
    let door = doors.door("resp");
    let mut stream = connect(door, b"*2\r\n$1000\r\n");
    let begin = std::time::Instant::now();
    let mut bytes_sent = 0;
    // Each byte arrives long before the timeout of the whole command, which is 10 s.
    while stream.write_all(b"x").is_ok() && begin.elapsed() < Duration::from_secs(30) {
        bytes_sent += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!((2..50).contains(&bytes_sent), "closed after {bytes_sent} bytes");
    answers(&mut connect(door, b""), b"PING\r\n", b"+PONG\r\n");
}

/// A call of the rate limit service without its message: the preface of HTTP/2, then a HEADERS frame.
fn half_grpc_call() -> Vec<u8> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // `:method: POST`, `:scheme: http`, then literals: `:path`, `:authority`, `content-type`, `te`.
    let mut block = vec![0x83, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x01a\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
    let mut bytes = GRPC[2].to_vec();
    bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    bytes
}

#[test]
fn clients_that_withhold_a_message_or_read_no_reply_are_closed_for_others() {
    let mut doors = Doors::start(&CONFIG.replace("[doors]", "[doors]\nconnections = 64\nthreads = 1"));
    let [http, resp, grpc] = ["http", "resp", "grpc"].map(|door| doors.door(door));
    let body = "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{";
    let replies_unread = b"INFO\r\n".repeat(20_000);
    let begin = std::time::Instant::now();
    for (door, bytes) in [(http, body.as_bytes()), (grpc, &half_grpc_call()), (resp, &replies_unread)] {
        let stalled: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = TcpStream::connect(door).unwrap();
                stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                let _ = stream.write_all(bytes);
                stream
            })
            .collect();
        assert_eq!(check(http, &json!({"rule": "api", "key": "good", "toll": 0}))["remaining"], 1000);
        drop(stalled);
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
}

//! Input that means harm on the gRPC door: other clients are served, and memory stays flat.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use super::{CONFIG, LIMITS, start_with, tools};

/// The first bytes of HTTP/2, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// A sequence that is the same in every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// One call of a gRPC client succeeds.
fn is_served(door: SocketAddr) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/grpc/client.py");
    let output = Command::new(tools().join("bin/python")).args([script, "one", &door.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn garbage_on_the_grpc_door_leaves_memory_flat_and_other_clients_served() {
    let mut doors = start_with(LIMITS, &CONFIG.replace("[doors]", "[doors]\nconnections = 64"));
    let door = doors.door("grpc");
    is_served(door);
    let before = doors.rss_kb();
    for seed in 0..200 {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(&noise(seed, 4096));
    }
    // Valid beginnings, then noise as frames.
    for seed in 0..200 {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(PREFACE);
        let _ = stream.write_all(&noise(seed, 2048));
    }
    // A frame and a head that are larger than allowed.
    for kind in [0_u8, 1] {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(PREFACE);
        let _ = stream.write_all(&[0xFF, 0xFF, 0xFF, kind, 4, 0, 0, 0, 1]);
        let _ = stream.write_all(&noise(7, 1 << 20));
    }
    // Connections that stay half-open take no more than their number.
    let mut open = Vec::new();
    for place in 0..300 {
        let mut stream = TcpStream::connect(door).unwrap();
        let _ = stream.write_all(&PREFACE[..place % (PREFACE.len() + 1)]);
        open.push(stream);
    }
    is_served(door);
    let after = doors.rss_kb();
    assert!(after < before + 32_768, "{before} kB, then {after} kB");
    drop(open);
}

#[test]
fn a_connection_without_a_call_is_closed_in_time() {
    let mut doors = start_with(LIMITS, CONFIG);
    let door = doors.door("grpc");
    let mut silent = TcpStream::connect(door).unwrap();
    let mut half = TcpStream::connect(door).unwrap();
    half.write_all(PREFACE).unwrap();
    for stream in [&mut silent, &mut half] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Some frames may arrive before the end.
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        assert!(bytes.len() < 4096);
    }
}

#[test]
fn oversized_slow_and_malformed_calls_fail_alone() {
    let mut doors = start_with(LIMITS, CONFIG);
    let door = doors.door("grpc");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doors/grpc/client.py");
    let output =
        Command::new(tools().join("bin/python")).args([script, "hostile", &door.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(doors.metric("tollgate_door_malformed_total") > 0);
}

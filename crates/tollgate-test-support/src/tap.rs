//! A recording proxy between two peers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{PATIENCE, free_addresses};

/// Forwards connections to a server and records their bytes.
pub struct Tap {
    pub address: SocketAddr,
    pub client: Said,
    pub server: Said,
}

/// The bytes that one side has sent.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

const PONG: &[u8] = b"\x04\x05\x04PONG";

impl Tap {
    pub fn before(server: SocketAddr) -> Self {
        let [address] = free_addresses();
        let listener = TcpListener::bind(address).unwrap();
        let tap = Self { address, client: Said::default(), server: Said::default() };
        let kept = [tap.client.clone(), tap.server.clone()];
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Peers that connect before the server listens retry.
                let Ok(server) = TcpStream::connect(server) else { continue };
                let ways = [(&client, &server), (&server, &client)];
                for ((from, to), kept) in ways.into_iter().zip(&kept) {
                    let (from, to, kept) = (from.try_clone().unwrap(), to.try_clone().unwrap(), kept.clone());
                    std::thread::spawn(move || carry(from, to, &kept));
                }
            }
        });
        tap
    }
}

impl Said {
    pub fn so_far(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// Waits until enough bytes were sent, and compares them. Responses to pings, which come at any time, are ignored.
pub fn same(said: &Said, expected: &[u8]) {
    let said = || {
        let mut said = said.so_far();
        while let Some(at) = said.windows(PONG.len()).position(|bytes| bytes == PONG) {
            said.drain(at..at + PONG.len());
        }
        said
    };
    let end = Instant::now() + PATIENCE;
    while said().len() < expected.len() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = said();
    let said = &said[..said.len().min(expected.len())];
    assert_eq!(said.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

fn carry(mut from: TcpStream, mut to: TcpStream, kept: &Said) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        kept.0.lock().unwrap().extend_from_slice(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The handshake of a peer with ZMTP 3.`minor` and this socket type.
pub fn beginning(minor: u8, socket_type: &str) -> Vec<u8> {
    let mut greeting = hex("ff00000000000000017f03");
    greeting.push(minor);
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    [greeting, introduction(socket_type)].concat()
}

pub fn introduction(socket_type: &str) -> Vec<u8> {
    [hex("0419 055245414459 0b536f636b65742d54797065 00000003"), socket_type.into()].concat()
}

/// A subscription in ZMTP 3.`minor`.
pub fn subscriptions(minor: u8, topics: &[&[u8]]) -> Vec<u8> {
    let one = |topic: &&[u8]| match minor {
        0 => [&[0, topic.len() as u8 + 1, 1], *topic].concat(),
        _ => [&[4, topic.len() as u8 + 10, 9], &b"SUBSCRIBE"[..], topic].concat(),
    };
    topics.iter().flat_map(one).collect()
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

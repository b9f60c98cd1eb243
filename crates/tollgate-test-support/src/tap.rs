//! A recording proxy between two peers of ZeroMQ's protocol ZMTP, and the bytes that they are expected to send.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{PATIENCE, free_addresses};

/// Forwards connections to a server and records their bytes.
pub struct Tap {
    pub address: SocketAddr,
    /// The bytes of all clients.
    pub client: Sent,
    /// The bytes of the server.
    pub server: Sent,
}

/// The bytes that one side has sent.
#[derive(Clone, Default)]
pub struct Sent(Arc<Mutex<Vec<u8>>>);

/// The response to a ping in ZMTP.
const PONG: &[u8] = b"\x04\x05\x04PONG";

impl Tap {
    /// A proxy to `server`.
    pub fn before(server: SocketAddr) -> Self {
        let [address] = free_addresses();
        let listener = TcpListener::bind(address).unwrap();
        let tap = Self { address, client: Sent::default(), server: Sent::default() };
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

impl Sent {
    pub fn so_far(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// Waits until as many bytes were sent as expected, and compares the first ones with `expected`. Responses to pings,
/// which come at any time, are ignored.
pub fn same(sent: &Sent, expected: &[u8]) {
    let sent = || {
        let mut sent = sent.so_far();
        while let Some(at) = sent.windows(PONG.len()).position(|bytes| bytes == PONG) {
            sent.drain(at..at + PONG.len());
        }
        sent
    };
    let end = Instant::now() + PATIENCE;
    while sent().len() < expected.len() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = sent();
    let sent = &sent[..sent.len().min(expected.len())];
    assert_eq!(sent.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Copies bytes in one direction until a peer closes, and records them.
fn carry(mut from: TcpStream, mut to: TcpStream, kept: &Sent) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        kept.0.lock().unwrap().extend_from_slice(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The handshake of a peer with ZMTP 3.`minor` and this socket type, such as `PUB`: the greeting and the command READY.
pub fn beginning(minor: u8, socket_type: &str) -> Vec<u8> {
    let mut greeting = hex("ff00000000000000017f03");
    greeting.push(minor);
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    [greeting, introduction(socket_type)].concat()
}

/// The command READY of a peer with this socket type, which has three letters.
pub fn introduction(socket_type: &str) -> Vec<u8> {
    [hex("0419 055245414459 0b536f636b65742d54797065 00000003"), socket_type.into()].concat()
}

/// The subscriptions to these topics in ZMTP 3.`minor`: messages in 3.0, commands in 3.1.
pub fn subscriptions(minor: u8, topics: &[&[u8]]) -> Vec<u8> {
    let one = |topic: &&[u8]| match minor {
        0 => [&[0, topic.len() as u8 + 1, 1], *topic].concat(),
        _ => [&[4, topic.len() as u8 + 10, 9], &b"SUBSCRIBE"[..], topic].concat(),
    };
    topics.iter().flat_map(one).collect()
}

/// The bytes of hexadecimal digits; white space is ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

//! Calls over TCP by one thread that polls its connections without sleeping: at a fixed rate, or one call in flight on
//! each connection. Timers are too coarse for a fixed rate, and a call costs less than with `redis-benchmark`, which is
//! slower than the servers if each call is sent alone.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::pace::{Latencies, Pace};

/// Connections for calls at a fixed rate, which take turns.
const CONNECTIONS: usize = 16;
/// The time after which a missing reply ends the measurement.
const REPLY_MAX: Duration = Duration::from_secs(5);

/// How a complete reply is recognised.
#[derive(Clone, Copy)]
pub(crate) enum Replies {
    /// This many arrays of five integers.
    RespArrays(usize),
    /// One response with `Content-Length`.
    Http,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// The due time of the call in flight, and the number of stalls of the load before it was sent.
    due: Option<(Instant, usize)>,
}

impl Replies {
    fn is_complete(self, bytes: &[u8]) -> bool {
        match self {
            Self::RespArrays(count) => bytes.iter().filter(|byte| **byte == b'\n').count() >= 6 * count,
            Self::Http => {
                let text = String::from_utf8_lossy(bytes);
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                length.is_some_and(|length| body.len() >= length)
            }
        }
    }
}

/// The latencies of calls at this rate.
pub(crate) fn latencies(
    address: SocketAddr,
    message: &[u8],
    replies: Replies,
    per_second: f64,
    span: Duration,
) -> Latencies {
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| Connection::open(address)).collect();
    let (mut pace, mut micros) = (Pace::start(per_second), Vec::new());
    let (calls, mut sent, mut received) = ((per_second * span.as_secs_f64()) as usize, 0, 0);
    while received < calls {
        let mut idle_until = Instant::now() + REPLY_MAX;
        for connection in &mut connections {
            let stalls = pace.check();
            if connection.due.is_none() && sent < calls && pace.due(sent) <= Instant::now() {
                connection.stream.write_all(message).unwrap();
                connection.due = Some((pace.due(sent), stalls));
                sent += 1;
            }
            if let Some((due, stalls_before)) = connection.due {
                idle_until = idle_until.min(due + REPLY_MAX);
                if connection.receive(replies) {
                    let latency = due.elapsed();
                    if pace.check() == stalls_before {
                        micros.push(latency.as_secs_f64() * 1e6);
                    }
                    received += 1;
                    connection.due = None;
                }
            }
        }
        assert!(Instant::now() < idle_until, "a call has no reply");
    }
    Latencies { micros, stalled: pace.stalled() }
}

/// The number of calls, and calls per second, with one call in flight on each of `count` connections. `write` writes
/// the call with this number.
pub(crate) fn throughput(
    address: SocketAddr,
    count: usize,
    replies: Replies,
    span: Duration,
    write: impl Fn(&mut Vec<u8>, usize),
) -> (f64, f64) {
    let mut connections: Vec<Connection> = (0..count).map(|_| Connection::open(address)).collect();
    let (begin, mut message, mut calls) = (Instant::now(), Vec::new(), 0);
    let mut send = |connection: &mut Connection, number| {
        message.clear();
        write(&mut message, number);
        connection.stream.write_all(&message).unwrap();
    };
    connections.iter_mut().enumerate().for_each(|(number, connection)| send(connection, number));
    while begin.elapsed() < span {
        for connection in &mut connections {
            if connection.receive(replies) {
                calls += 1;
                send(connection, count + calls);
            }
        }
    }
    (calls as f64, calls as f64 / begin.elapsed().as_secs_f64())
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, received: Vec::new(), due: None }
    }

    /// Reads available bytes. Returns whether the reply is complete.
    fn receive(&mut self, replies: Replies) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the server closed the connection"),
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
        let is_complete = replies.is_complete(&self.received);
        if is_complete {
            self.received.clear();
        }
        is_complete
    }
}

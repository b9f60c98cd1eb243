//! Calls at a fixed rate over TCP, with latencies from their due times, so that a slow server cannot delay the load and
//! hide its own delay. The thread polls without sleeping, because timers are too coarse.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Connections, which take turns.
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
    /// The due time of the call in flight.
    due: Option<Instant>,
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

/// The latencies of calls at this rate, in microseconds.
pub(crate) fn latencies(
    address: SocketAddr,
    message: &[u8],
    replies: Replies,
    per_second: f64,
    span: Duration,
) -> Vec<f64> {
    let connect = |_| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Connection { stream, received: Vec::new(), due: None }
    };
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(connect).collect();
    let (begin, mut sent, mut latencies) = (Instant::now(), 0_u32, Vec::new());
    let due_of = |call: u32| begin + Duration::from_secs_f64(f64::from(call) / per_second);
    let calls = (per_second * span.as_secs_f64()) as u32;
    while latencies.len() < calls as usize {
        let mut idle_until = Instant::now() + REPLY_MAX;
        for connection in &mut connections {
            if connection.due.is_none() && sent < calls && due_of(sent) <= Instant::now() {
                connection.stream.write_all(message).unwrap();
                connection.due = Some(due_of(sent));
                sent += 1;
            }
            if let Some(due) = connection.due {
                idle_until = idle_until.min(due + REPLY_MAX);
                if connection.receive(replies) {
                    latencies.push(due.elapsed().as_secs_f64() * 1e6);
                    connection.due = None;
                }
            }
        }
        assert!(Instant::now() < idle_until, "a call has no reply");
    }
    latencies
}

impl Connection {
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

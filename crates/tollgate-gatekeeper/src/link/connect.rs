//! Connections that are made again whenever they break.

use core::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_wire::zmtp::{Connection, ENTROPY_BYTES, Entropy, Identity, SocketKind};

/// Where somebody is: a host by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// A text that is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEndpoint;

impl fmt::Display for NoEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no host and port, such as 127.0.0.1:10004")
    }
}

impl core::error::Error for NoEndpoint {}

impl Endpoint {
    /// Reads `host:port`, also behind `tcp://` as ZeroMQ writes it.
    pub fn parse(text: &str) -> Result<Self, NoEndpoint> {
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or(NoEndpoint)?;
        let port: u16 = port.parse().map_err(|_| NoEndpoint)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        // A bare IPv6 address would run into its port.
        let is_host = !bare.is_empty() && bare.bytes().all(known) && (host != bare || !host.contains(':'));
        (is_host && port != 0).then(|| Self { host: bare.to_string(), port }).ok_or(NoEndpoint)
    }

    /// The same host, one port further: where Smockron has its control.
    pub fn next_port(&self) -> Option<Self> {
        Some(Self { host: self.host.clone(), port: self.port.checked_add(1)? })
    }

    /// Whether it is this machine's own, for certain.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// How long a connection may take to be made, and then a peer to introduce itself.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Bytes that a peer has not acknowledged for this long break the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(6);
const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// How often a peer is asked whether it is there, and for how long it may be silent.
pub(super) const PING_EVERY: Duration = Duration::from_secs(2);
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(6);

/// The pauses between tries.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    failures: u32,
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

impl Pauses {
    /// The last try was good.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait for the next try: twice as long every time up to a bound, and of that at random between half and all.
    pub(super) fn next(&mut self) -> Duration {
        let whole = PAUSE_MIN.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        let chance = RandomState::new().hash_one(self.failures) as u32;
        whole / 2 + (whole / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// Nobody there, or too slow.
    Away(io::Error),
    /// Somebody who does not speak as it should.
    Wrong(&'static str),
}

impl fmt::Display for NoConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(error) => error.fmt(formatter),
            Self::Wrong(fault) => formatter.write_str(fault),
        }
    }
}

/// Connects as a socket of this kind, and exchanges introductions.
pub(super) async fn connect(
    endpoint: &Endpoint,
    kind: SocketKind,
    identity: Option<&Identity>,
) -> Result<(TcpStream, Connection), NoConnection> {
    let late = |_| NoConnection::Away(io::ErrorKind::TimedOut.into());
    let made = timeout(CONNECT_MAX, TcpStream::connect((endpoint.host.as_str(), endpoint.port))).await.map_err(late)?;
    let mut stream = made.map_err(NoConnection::Away)?;
    // Neither is needed, only better.
    let _ = stream.set_nodelay(true);
    let socket = socket2::SockRef::from(&stream);
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
    // The system's own queue is one more in which reports would wait through an outage.
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    let mut connection = match identity {
        None => Connection::new(kind),
        Some(identity) => Connection::secured(kind, identity.clone(), draw_entropy().map_err(NoConnection::Away)?),
    };
    timeout(HANDSHAKE_MAX, introduce(&mut stream, &mut connection)).await.map_err(late)??;
    Ok((stream, connection))
}

/// Random bytes of the system, for one connection.
pub fn draw_entropy() -> io::Result<Entropy> {
    let mut bytes = [0; ENTROPY_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Entropy(bytes))
}

async fn introduce(stream: &mut TcpStream, connection: &mut Connection) -> Result<(), NoConnection> {
    loop {
        let is_ready = connection.poll().map_err(|fault| NoConnection::Wrong(fault.as_str()))?.is_some();
        let output = core::mem::take(connection.output());
        stream.write_all(&output).await.map_err(NoConnection::Away)?;
        if is_ready {
            return Ok(());
        }
        if stream.read_buf(connection.input()).await.map_err(NoConnection::Away)? == 0 {
            return Err(NoConnection::Away(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for (text, shown) in [
            ("127.0.0.1:10004", "127.0.0.1:10004"),
            ("tcp://master.example:10004", "master.example:10004"),
            ("[::1]:10004", "[::1]:10004"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", "10004", "host", "host:", "host:0", "host:70000", ":10004", "::1:10004", "http://h:1", "a b:1"]
        {
            assert_eq!(Endpoint::parse(text), Err(NoEndpoint), "{text}");
        }
        assert_eq!(Endpoint::parse("h:10004").unwrap().next_port().unwrap().to_string(), "h:10005");
        assert_eq!(Endpoint::parse("h:65535").unwrap().next_port(), None);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_all_alike() {
        let mut pauses = Pauses::default();
        let first: Vec<_> = (0..30).map(|_| pauses.next()).collect();
        assert!(first.iter().all(|pause| (PAUSE_MIN / 2..=PAUSE_MAX).contains(pause)));
        assert!(first[0] <= PAUSE_MIN && first[9] >= PAUSE_MAX / 2);
        let last: std::collections::BTreeSet<_> = first[10..].iter().collect();
        assert!(last.len() > 10, "{last:?}");
        pauses.reset();
        assert!(pauses.next() <= PAUSE_MIN);
    }
}

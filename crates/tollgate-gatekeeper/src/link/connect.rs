//! Connections with reconnection and backoff.

use core::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_wire::zmtp::{Connection, ENTROPY_BYTES, Entropy, Identity, SocketKind};

/// A host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// The text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host and a port, such as 127.0.0.1:10004")]
pub struct EndpointError;

impl Endpoint {
    /// Parses `host:port`, with an optional `tcp://` prefix as in ZeroMQ.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or(EndpointError)?;
        let port: u16 = port.parse().map_err(|_| EndpointError)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        // The port of an IPv6 address without brackets would be ambiguous.
        let is_host = !bare.is_empty() && bare.bytes().all(known) && (host != bare || !host.contains(':'));
        (is_host && port != 0).then(|| Self { host: bare.to_string(), port }).ok_or(EndpointError)
    }

    /// The same host with the next port, where Smockron has its control socket.
    pub fn next_port(&self) -> Option<Self> {
        Some(Self { host: self.host.clone(), port: self.port.checked_add(1)? })
    }

    /// Whether the endpoint is certainly on this machine.
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

/// Timeouts for connecting and for the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The connection is closed if data is unacknowledged for this long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(6);
const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// The interval of pings, and the longest silence of a peer.
pub(super) const PING_EVERY: Duration = Duration::from_secs(2);
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(6);

/// The backoff between connection attempts.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

impl Backoff {
    /// Resets the backoff after a successful attempt.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next pause. It doubles each time up to a maximum, with a jitter of 50 %.
    pub(super) fn next(&mut self) -> Duration {
        let whole = PAUSE_MIN.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        whole / 2 + (whole / 2).mul_f64(fastrand::f64())
    }
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The peer is unreachable or too slow.
    #[error(transparent)]
    Unreachable(io::Error),
    /// The peer violates the protocol.
    #[error("{0}")]
    Protocol(&'static str),
}

/// Connects with a socket of this kind and completes the handshake.
pub(super) async fn connect(
    endpoint: &Endpoint,
    kind: SocketKind,
    identity: Option<&Identity>,
) -> Result<(TcpStream, Connection), ConnectError> {
    let late = |_| ConnectError::Unreachable(io::ErrorKind::TimedOut.into());
    let made = timeout(CONNECT_MAX, TcpStream::connect((endpoint.host.as_str(), endpoint.port))).await.map_err(late)?;
    let mut stream = made.map_err(ConnectError::Unreachable)?;
    // Both are optimizations.
    let _ = stream.set_nodelay(true);
    let socket = socket2::SockRef::from(&stream);
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
    // The kernel's send buffer would be another queue of reports during an outage.
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    let mut connection = match identity {
        None => Connection::new(kind),
        Some(identity) => {
            Connection::secured(kind, identity.clone(), draw_entropy().map_err(ConnectError::Unreachable)?)
        }
    };
    timeout(HANDSHAKE_MAX, handshake(&mut stream, &mut connection)).await.map_err(late)??;
    Ok((stream, connection))
}

/// Random bytes for one connection.
pub fn draw_entropy() -> io::Result<Entropy> {
    let mut bytes = [0; ENTROPY_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Entropy(bytes))
}

async fn handshake(stream: &mut TcpStream, connection: &mut Connection) -> Result<(), ConnectError> {
    loop {
        let is_ready = connection.poll().map_err(|fault| ConnectError::Protocol(fault.as_str()))?.is_some();
        let output = core::mem::take(connection.output());
        stream.write_all(&output).await.map_err(ConnectError::Unreachable)?;
        if is_ready {
            return Ok(());
        }
        if stream.read_buf(connection.input()).await.map_err(ConnectError::Unreachable)? == 0 {
            return Err(ConnectError::Unreachable(io::ErrorKind::UnexpectedEof.into()));
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
            assert_eq!(Endpoint::parse(text), Err(EndpointError), "{text}");
        }
        assert_eq!(Endpoint::parse("h:10004").unwrap().next_port().unwrap().to_string(), "h:10005");
        assert_eq!(Endpoint::parse("h:65535").unwrap().next_port(), None);
    }

    #[test]
    fn pauses_grow_to_a_maximum_and_are_jittered() {
        let mut backoff = Backoff::default();
        let first: Vec<_> = (0..30).map(|_| backoff.next()).collect();
        assert!(first.iter().all(|pause| (PAUSE_MIN / 2..=PAUSE_MAX).contains(pause)));
        assert!(first[0] <= PAUSE_MIN && first[9] >= PAUSE_MAX / 2);
        let last: std::collections::BTreeSet<_> = first[10..].iter().collect();
        assert!(last.len() > 10, "{last:?}");
        backoff.reset();
        assert!(backoff.next() <= PAUSE_MIN);
    }
}

//! The connections of the link to masters, with reconnection and backoff.

use core::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tollgate_wire::zmtp::{Connection, ENTROPY_BYTES, Entropy, Identity, SocketKind, ZmtpError};

use super::dispatcher::Master;
use super::master_metrics::MasterMetrics;

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

/// The timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The timeout for the ZMTP handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The connection is closed if data is unacknowledged for this long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(6);
const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// The interval of pings.
pub(super) const PING_EVERY: Duration = Duration::from_secs(2);
/// The time without a byte from a peer that answers pings after which the connection is closed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(6);

/// The shortest pause between connection attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between connection attempts.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// The next pause between connection attempts: between a half and all of `pause`, which then doubles, up to a maximum.
fn next_pause(pause: &mut Duration) -> Duration {
    let whole = core::mem::replace(pause, (*pause * 2).min(PAUSE_MAX));
    whole / 2 + (whole / 2).mul_f64(fastrand::f64())
}

/// Connects with a socket of this kind and completes the handshake.
async fn connect(
    endpoint: &Endpoint,
    kind: SocketKind,
    identity: Option<&Identity>,
) -> io::Result<(TcpStream, Connection)> {
    let connecting = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    let mut stream = timeout(CONNECT_MAX, connecting).await??;
    // The connection works without these options, so errors are ignored.
    let _ = stream.set_nodelay(true);
    let socket = socket2::SockRef::from(&stream);
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
    // The kernel's send buffer would be another queue of reports during an outage.
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    let mut connection = match identity {
        None => Connection::new(kind),
        Some(identity) => Connection::secured(kind, identity.clone(), draw_entropy()?),
    };
    timeout(HANDSHAKE_MAX, handshake(&mut stream, &mut connection)).await??;
    Ok((stream, connection))
}

/// Random bytes for one connection.
pub fn draw_entropy() -> io::Result<Entropy> {
    let mut bytes = [0; ENTROPY_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Entropy(bytes))
}

/// Connects to one endpoint of a master and calls `serve`, again and again. `is_up` is true while there is a
/// connection.
pub(super) async fn serve_forever(
    master: &Master,
    (endpoint, kind): (&Endpoint, SocketKind),
    is_up: &AtomicBool,
    serve: impl AsyncFn(TcpStream, Connection) -> io::Result<()>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        let ended = match connect(endpoint, kind, master.identity.as_ref()).await {
            Ok((stream, connection)) => {
                MasterMetrics::count(&master.metrics.connections);
                is_up.store(true, Relaxed);
                pause = PAUSE_MIN;
                let ended = serve(stream, connection).await;
                is_up.store(false, Relaxed);
                ended
            }
            Err(error) => Err(error),
        };
        if ended.is_err() {
            MasterMetrics::count(&master.metrics.failures);
        }
        sleep(next_pause(&mut pause)).await;
    }
}

/// The error of a peer that violates ZMTP.
pub(super) fn violation(fault: ZmtpError) -> io::Error {
    io::Error::other(fault.as_str())
}

async fn handshake(stream: &mut TcpStream, connection: &mut Connection) -> io::Result<()> {
    loop {
        let is_ready = connection.poll().map_err(violation)?.is_some();
        let output = core::mem::take(connection.output());
        stream.write_all(&output).await?;
        if is_ready {
            return Ok(());
        }
        if stream.read_buf(connection.input()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
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
        let mut pause = PAUSE_MIN;
        let first: Vec<_> = (0..30).map(|_| next_pause(&mut pause)).collect();
        assert!(first.iter().all(|pause| (PAUSE_MIN / 2..=PAUSE_MAX).contains(pause)));
        assert!(first[0] <= PAUSE_MIN && first[9] >= PAUSE_MAX / 2);
        let last: std::collections::BTreeSet<_> = first[10..].iter().collect();
        assert!(last.len() > 10, "{last:?}");
    }
}

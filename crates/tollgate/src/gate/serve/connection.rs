//! Serves an accepted connection: the steps before HTTP (PROXY header and TLS), then HTTP/1.1 or HTTP/2.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use tollgate_core::network::unmapped;
use tollgate_wire::proxy_protocol::{self, Source};

use crate::gate::decide::identify::{ConnectionPeer, trusts};
use crate::gate::http::h1;
use crate::gate::http::h2;
use crate::gate::http::worker::{CountGuard, TotalGuard, Worker};
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::caps::{CountedConnection, Eviction};
use crate::gate::net::socket::{Socket, Transport};
use crate::gate::net::timer::{Timer, Way};
use crate::gate::observe::counters::WorkerCounter;
use crate::settings::Gate as Settings;

/// The body of the response to HTTP without TLS.
const NOT_TLS: &str = "A plain HTTP request was sent to an HTTPS port. Use https:// in the URL.\n";

/// Serves a connection until it ends or is evicted to make room. `counted` counts it for the address of the TCP peer,
/// and `_total` in the total.
///
/// The future of this function is the memory of an idle connection, so it stays small: steps that need more memory are
/// boxed, and dropped when they end.
pub(crate) async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    (mut counted, _total): (CountedConnection, TotalGuard),
    worker: Rc<Worker>,
) {
    let settings = worker.settings();
    let _guard = CountGuard::new(&worker.connections);
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let timer = worker.timers.timer();
    let tls = worker.shared.server_tls.load_full();
    let needs_tls = tls.is_some();
    let (stream, source) = if settings.proxy_protocol || tls.is_some() {
        let opened = Box::pin(open(stream, address, tls, &settings));
        match in_time(opened, &timer, settings.timeouts.head, &counted.eviction).await {
            Ok(opened) => opened,
            Err(_) => return worker.counters.count(WorkerCounter::Unopened),
        }
    } else {
        (Transport::Plain(stream), Source::Direct)
    };
    let secure = matches!(stream, Transport::ServerTls(_));
    let (client, peer) = identify(source, address.ip(), secure, &settings);
    if client != address.ip() {
        let Some(behind) = count(client, &worker, &settings) else {
            return worker.counters.count(WorkerCounter::TurnedAway);
        };
        counted = behind;
    }
    let eviction = counted.eviction.clone();
    let socket = Socket::new(stream, timer);
    // Constructed where it is polled, because a future that is moved takes its memory twice.
    let mut served = pin!(speak(socket, peer, counted, (needs_tls, secure), &settings, &worker));
    eviction.register_task().await;
    poll_fn(|cx| if eviction.is_evicted() { Poll::Ready(()) } else { served.as_mut().poll(cx) }).await;
}

/// Serves requests in the protocol of the client. A client that uses no TLS (`secure`) although the settings demand it
/// (`needs_tls`) gets an error.
async fn speak(
    socket: Socket,
    peer: ConnectionPeer,
    counted: CountedConnection,
    (needs_tls, secure): (bool, bool),
    settings: &Settings,
    worker: &Rc<Worker>,
) {
    if needs_tls && !secure {
        return Box::pin(reject_plain_http(&socket, worker)).await;
    }
    let mut buffer = ReadBuffer::default();
    if socket.speaks_h2() || (settings.h2c && !secure && begins_h2(&socket, &mut buffer, settings).await) {
        Box::pin(h2::serve(socket, buffer, peer, counted, worker.clone())).await;
    } else {
        h1::serve(&socket, buffer, &peer, worker).await;
    }
}

/// The address for which the connection is counted, and the peer of the connection. `source` is the client according to
/// the PROXY header, and `address` that of the TCP peer.
fn identify(source: Source, address: IpAddr, secure: bool, settings: &Settings) -> (IpAddr, ConnectionPeer) {
    match source {
        Source::Client(client) => (client.ip(), ConnectionPeer::new(client.ip(), secure, settings).named_by(address)),
        Source::Unknown => (address, ConnectionPeer::unknown_behind(address, secure)),
        Source::Direct => (address, ConnectionPeer::new(address, secure, settings)),
    }
}

/// Counts a connection for the address of its client. None if the address is at its limit; a trusted proxy has no
/// limit.
pub(crate) fn count(address: IpAddr, worker: &Worker, settings: &Settings) -> Option<CountedConnection> {
    let address = unmapped(address);
    let bound = (!trusts(settings, address)).then_some(settings.bounds.connections_per_address_max);
    worker.shared.caps.count(address, bound)
}

/// Waits for the steps before HTTP, at most for `patience`. In this time the connection counts as idle, so it is closed
/// first if there is no room.
async fn in_time<T>(
    mut opened: Pin<Box<impl Future<Output = io::Result<T>>>>,
    timer: &Timer,
    patience: Duration,
    eviction: &Eviction,
) -> io::Result<T> {
    timer.set(Way::In, patience);
    timer.set_idle(true);
    eviction.register_task().await;
    let outcome = poll_fn(|cx| match opened.as_mut().poll(cx) {
        Poll::Pending if eviction.is_evicted() => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        Poll::Pending if timer.is_over(Way::In, cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        Poll::Pending if timer.is_closing() => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        polled => polled,
    });
    let outcome = outcome.await;
    timer.set_idle(false);
    timer.clear(Way::In);
    outcome
}

/// Performs the steps before HTTP. Returns the transport, and the client that the PROXY header names. The transport is
/// plain in spite of `tls` if the client sends HTTP without it.
async fn open(
    mut stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
    settings: &Settings,
) -> io::Result<(Transport, Source)> {
    let mut source = Source::Direct;
    if settings.proxy_protocol {
        if !trusts(settings, address.ip()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        source = read_proxy_header(&mut stream).await?;
    }
    match tls {
        None => Ok((Transport::Plain(stream), source)),
        Some(_) if sends_plain_http(&stream).await? => Ok((Transport::Plain(stream), source)),
        Some(config) => {
            let acceptor = tokio_rustls::TlsAcceptor::from(config);
            Ok((Transport::ServerTls(Box::new(acceptor.accept(stream).await?)), source))
        }
    }
}

/// Whether the first byte is that of an HTTP method. No TLS record starts with a letter.
async fn sends_plain_http(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0].is_ascii_alphabetic())
}

/// Answers HTTP without TLS on a port with TLS, where a failed handshake would give the client no readable error.
async fn reject_plain_http(socket: &Socket, worker: &Worker) {
    worker.counters.count(WorkerCounter::Unopened);
    let mut buffer = ReadBuffer::default();
    // The first byte has arrived, so this does not wait.
    if !matches!(socket.read(&mut buffer).await, Ok(1..)) {
        return;
    }
    let body = if buffer.bytes().starts_with(b"HEAD ") { "" } else { NOT_TLS };
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        NOT_TLS.len()
    );
    let mut parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
    if socket.write_all(&mut parts, worker.settings().timeouts.head).await.is_ok() {
        h1::linger(socket, &mut buffer).await;
    }
}

/// Reads the PROXY header and not a byte more: TLS may follow.
async fn read_proxy_header(stream: &mut TcpStream) -> io::Result<Source> {
    use tokio::io::AsyncReadExt;
    let mut bytes = vec![0; proxy_protocol::HEADER_BYTES_MAX];
    let mut seen = 0;
    loop {
        let peeked = stream.peek(&mut bytes).await?;
        match proxy_protocol::parse(&bytes[..peeked]) {
            Ok(Some((length, source))) => {
                stream.read_exact(&mut bytes[..length]).await?;
                return Ok(source);
            }
            Ok(None) if peeked > seen => seen = peeked,
            Ok(None) => {
                // Peeking returns at once while bytes are unread, so it cannot wait for the rest of a header that comes
                // in pieces, which is very rare.
                if peeked == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(proxy_protocol::InvalidHeader) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Whether the first bytes are the preface of HTTP/2. They stay in the buffer.
async fn begins_h2(socket: &Socket, buffer: &mut ReadBuffer, settings: &Settings) -> bool {
    socket.timer.set(Way::In, settings.timeouts.head);
    socket.timer.set_idle(true);
    let begins = loop {
        let seen = buffer.bytes().len().min(h2::PREFACE.len());
        let is_prefix = buffer.bytes()[..seen] == h2::PREFACE[..seen];
        if !is_prefix || seen == h2::PREFACE.len() {
            break is_prefix;
        }
        // At the end of the stream, HTTP/1.1 handles the bytes that have come.
        if !matches!(socket.read(buffer).await, Ok(1..)) {
            break false;
        }
    };
    socket.timer.set_idle(false);
    begins
}

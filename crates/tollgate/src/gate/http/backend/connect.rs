//! Opens connections to a backend: name lookup, TCP and TLS.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::Backend;
use crate::gate::net::socket::Transport;
use crate::settings::BackendProtocol;

/// Connects to a backend. Fails if it takes longer than `timeout`.
pub(crate) async fn connect(
    backend: &Backend,
    tls: &ArcSwap<rustls::ClientConfig>,
    timeout: Duration,
) -> io::Result<Transport> {
    let opened = tokio::time::timeout(timeout, open(backend, tls)).await;
    opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether the gate could not connect because this process or machine is short of descriptors, ports or memory.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| shortages.iter().any(|errno| errno.raw_os_error() == code))
}

async fn open(backend: &Backend, tls: &ArcSwap<rustls::ClientConfig>) -> io::Result<Transport> {
    let url = &backend.url;
    let stream = dial(backend).await?;
    stream.set_nodelay(true)?;
    if !url.tls {
        return Ok(Transport::Plain(stream));
    }
    let name = ServerName::try_from(url.host.clone()).map_err(io::Error::other)?;
    let connector = tokio_rustls::TlsConnector::from(tls.load_full());
    let protocol = if url.protocol == BackendProtocol::Http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() };
    Ok(Transport::ClientTls(Box::new(connector.with_alpn(vec![protocol]).connect(name, stream).await?)))
}

/// Connects to the first address that answers. The name is looked up for each connection; connections are reused, so
/// lookups are rare.
async fn dial(backend: &Backend) -> io::Result<TcpStream> {
    let url = &backend.url;
    if let Ok(ip) = url.host.parse() {
        return dial_address(backend, SocketAddr::new(ip, url.port)).await;
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host((url.host.as_str(), url.port)).await? {
        match dial_address(backend, address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects, which takes one round trip. The queue of the backend subtracts the shortest one from the measured times of
/// requests, to get the time at the backend.
async fn dial_address(backend: &Backend, address: SocketAddr) -> io::Result<TcpStream> {
    let start = Instant::now();
    let stream = TcpStream::connect(address).await?;
    backend.queue.connected_within(start.elapsed().into());
    Ok(stream)
}

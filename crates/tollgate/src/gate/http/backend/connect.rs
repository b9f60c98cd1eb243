//! Connections to a backend.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::Backend;
use crate::gate::net::socket::Transport;
use crate::gate::net::tls::provider;
use crate::settings::{BackendProtocol, BackendUrl};

/// Connects to a backend.
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

/// Connects, which takes one round trip. The queue subtracts it from the measured time.
async fn dial_address(backend: &Backend, address: SocketAddr) -> io::Result<TcpStream> {
    let start = Instant::now();
    let stream = TcpStream::connect(address).await?;
    backend.queue.connected_within(start.elapsed());
    Ok(stream)
}

/// The TLS configuration for backends, with the root certificates of the system. They are read only if a backend uses
/// TLS.
pub(crate) fn tls_config(backends: &[&BackendUrl]) -> io::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    if backends.iter().any(|backend| backend.tls) {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the system's certificates cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(io::Error::other(
                "no root certificates on this system: install ca-certificates, or set SSL_CERT_FILE",
            ));
        }
    }
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the versions that rustls does")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

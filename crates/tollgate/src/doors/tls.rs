//! TLS of a door: its certificate, and the authorities whose client certificates it accepts.
//!
//! A renewal replaces the files while connections are open. New connections use the new files.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Protocol;
use crate::gate::{CertificatePlan, Certificates};
use crate::settings::DoorTls;

/// Timeout for a TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The certificates of one door, shared by all threads.
pub(super) struct DoorCertificates {
    certificates: Arc<Certificates>,
    /// The TLS configuration with the current certificates.
    config: ArcSwap<ServerConfig>,
    /// The ALPN protocols of the door.
    protocols: &'static [&'static str],
    /// Whether each client must have a certificate.
    pub(super) asks_for_certificate: bool,
}

impl DoorCertificates {
    /// Reads the files of a door.
    pub(super) fn load(settings: &DoorTls, protocol: Protocol) -> io::Result<Arc<Self>> {
        let protocols: &[&str] = match protocol {
            Protocol::Grpc => &["h2"],
            Protocol::Http => &["http/1.1"],
            Protocol::Resp => &[],
        };
        let plan = CertificatePlan::of_door(settings.files(), settings.client_ca.clone());
        let certificates = Certificates::load(plan)?;
        let config = ArcSwap::new(certificates.server_config(protocols));
        let asks_for_certificate = settings.client_ca.is_some();
        Ok(Arc::new(Self { certificates, config, protocols, asks_for_certificate }))
    }

    /// Reads the files again if they have changed.
    fn refresh(&self) {
        match self.certificates.refresh() {
            Ok(true) => {
                self.config.store(self.certificates.server_config(self.protocols));
                tracing::info!("new certificates of a door are in force");
            }
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "certificates of a door cannot be read; the old ones stay in force"),
        }
    }

    /// Performs the handshake. Fails if a required client certificate is missing or invalid.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let accepted = TlsAcceptor::from(self.config.load_full()).accept(stream);
        tokio::time::timeout(HANDSHAKE_MAX, accepted).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// The certificates of all doors, for checking their files periodically.
#[derive(Clone, Default)]
pub(crate) struct DoorCertificateFiles(pub(super) Vec<Arc<DoorCertificates>>);

impl DoorCertificateFiles {
    /// Reads files that have changed. May block on a disk.
    pub(crate) fn refresh(&self) {
        for door in &self.0 {
            door.refresh();
        }
    }
}

//! TLS connections of the load generator to the server under test.

use std::{fmt, io, path::Path, sync::Arc};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The TLS configuration of the clients: the certificates to trust, and the expected name of the server. All clients
/// share it with its cache of TLS sessions, so that repeated visits resume a session, as those of a browser do.
#[derive(Clone)]
pub struct TargetTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for TargetTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TargetTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TargetTls {
    /// Trusts the certificate authorities of this system.
    pub(crate) fn of_system(host: &str) -> io::Result<Self> {
        Self::trusting(host, rustls_native_certs::load_native_certs().certs)
    }

    /// Trusts the certificates in a PEM file.
    pub(crate) fn of_file(host: &str, file: &Path) -> io::Result<Self> {
        let wrong = |error| io::Error::other(format!("{}: {error}", file.display()));
        let certificates = CertificateDer::pem_file_iter(file).map_err(wrong)?;
        Self::trusting(host, certificates.collect::<Result<Vec<_>, _>>().map_err(wrong)?)
    }

    fn trusting(host: &str, certificates: Vec<CertificateDer<'static>>) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(io::Error::other("there are no certificates to trust"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Performs the handshake on a new connection.
    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

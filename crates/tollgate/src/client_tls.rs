//! TLS of connections that this process makes.

use std::io;
use std::sync::Arc;

/// The TLS configuration with the root certificates of the system, which are read only if TLS is used.
pub(crate) fn config(is_used: bool) -> io::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    if is_used {
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the versions that rustls does")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

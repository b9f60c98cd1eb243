//! TLS of connections that this process makes: to backends, and for webhooks, telemetry and commands.

use std::io;
use std::sync::Arc;

/// The TLS configuration. It trusts the root certificates of the system if `needs_roots`, otherwise none: reading them
/// takes time and fails on a system without them, so a gate whose backends do not use TLS does without.
pub(crate) fn config(needs_roots: bool) -> io::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    if needs_roots {
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
        .expect("the provider supports the default versions of rustls")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

//! Certificates, read again when their files change.
//!
//! A renewal replaces the files while connections are open. Whoever connects next gets the new certificate; a pair of files that
//! cannot be used changes nothing and is reported.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::settings::CertificateFiles;

/// The cryptography in use; named, so that a dependency that brings another cannot leave the choice open.
pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates in force.
#[derive(Debug)]
pub(crate) struct Certificates {
    files: Vec<CertificateFiles>,
    keys: ArcSwap<Vec<Arc<CertifiedKey>>>,
    /// What the files looked like when they were last read, right or wrong.
    seen: Mutex<Vec<Stamp>>,
}

/// What tells one version of a file from another.
type Stamp = Option<(SystemTime, u64)>;

impl Certificates {
    /// Reads the files.
    pub(crate) fn load(files: &[CertificateFiles]) -> io::Result<Arc<Self>> {
        let seen = Mutex::new(stamps(files));
        let keys = ArcSwap::from_pointee(read_all(files)?);
        Ok(Arc::new(Self { files: files.to_vec(), keys, seen }))
    }

    /// Reads the files again if they have changed. Says whether there are new certificates.
    pub(crate) fn refresh(&self) -> io::Result<bool> {
        let now = stamps(&self.files);
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if *seen == now {
                return Ok(false);
            }
            *seen = now;
        }
        self.keys.store(Arc::new(read_all(&self.files)?));
        Ok(true)
    }

    /// How TLS is spoken to clients.
    pub(crate) fn server_config(self: &Arc<Self>) -> Arc<rustls::ServerConfig> {
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks the versions that rustls does")
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl ResolvesServerCert for Certificates {
    /// The first certificate that is for the name that was asked for; or else the first.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.keys.load();
        let named = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fitting = named.and_then(|name| keys.iter().find(|key| is_for(key, &name)));
        fitting.or_else(|| keys.first()).cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = key.end_entity_cert().ok().and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
    parsed.is_some_and(|leaf| rustls::client::verify_server_name(&leaf, name).is_ok())
}

fn stamps(files: &[CertificateFiles]) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().flat_map(|files| [stamp(&files.chain), stamp(&files.key)]).collect()
}

fn read_all(files: &[CertificateFiles]) -> io::Result<Vec<Arc<CertifiedKey>>> {
    files.iter().map(read).collect()
}

fn read(files: &CertificateFiles) -> io::Result<Arc<CertifiedKey>> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let chain = CertificateDer::pem_file_iter(&files.chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(&files.chain, &error))?;
    if chain.is_empty() {
        return Err(wrong(&files.chain, &"has no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, &error))?;
    let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| wrong(&files.key, &error))?;
    Ok(Arc::new(key))
}

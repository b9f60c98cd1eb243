//! The TLS certificates of the gate and of doors (the interfaces for other programs), read again when their files
//! change.
//!
//! The client names a host in its handshake (SNI). The certificates of the site with that host are tried first. The
//! name selects nothing else: backends and rules follow the `Host` of each request.
//!
//! A renewal replaces the files while connections are open. New connections get the new certificate. Files that cannot
//! be used change nothing and are reported.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tollgate_core::request::host_of;
use tollgate_core::site::{HostPattern, find_site};
use zeroize::Zeroizing;

use crate::bounded_file;
use crate::settings::{CertificateFiles, Gate as Settings};

/// The largest file with certificates or a key, in bytes. A chain has a few kilobytes.
pub(crate) const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;

/// The cryptography provider. It is named here, so that a dependency that brings another one does not make the choice
/// ambiguous.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates in force. Each handshake selects one of them.
#[derive(Debug)]
pub(crate) struct Certificates {
    plan: CertificatePlan,
    loaded: ArcSwap<LoadedFiles>,
    seen: Mutex<Seen>,
}

/// The content of the files.
#[derive(Debug)]
struct LoadedFiles {
    /// In the order of the files.
    keys: Vec<Arc<CertifiedKey>>,
    client_verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// The files of all certificates, and the hosts of the sites that have their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificatePlan {
    files: Vec<CertificateFiles>,
    sites: Vec<SiteCertificates>,
    /// The file with the authorities of client certificates. None: clients need no certificate.
    client_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SiteCertificates {
    hosts: Vec<HostPattern>,
    /// The indices of its certificates in [`CertificatePlan::files`].
    places: Range<usize>,
}

impl CertificatePlan {
    /// The certificates of the gate, followed by those of its sites.
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut plan = Self { files: settings.tls.clone(), ..Self::default() };
        for site in &settings.sites {
            let first = plan.files.len();
            plan.files.extend(site.tls.iter().cloned());
            plan.sites.push(SiteCertificates { hosts: site.hosts.clone(), places: first..plan.files.len() });
        }
        plan
    }

    /// The certificate of a door. With `client_ca`, each client must have a certificate of an authority in that file.
    pub(crate) fn of_door(files: CertificateFiles, client_ca: Option<PathBuf>) -> Self {
        Self { files: vec![files], sites: Vec::new(), client_ca }
    }

    /// Whether there is no certificate.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The indices of the certificates to try for the requested name: those of its site, then all in order.
    fn places_for(&self, name: Option<&str>) -> impl Iterator<Item = usize> {
        let host = name.and_then(|name| host_of(name.as_bytes())).unwrap_or_default();
        let site = find_site(self.sites.iter().map(|site| site.hosts.as_slice()), host);
        let own = site.map_or(0..0, |site| self.sites[site].places.clone());
        own.chain(0..self.files.len())
    }
}

/// The last reading of the files.
#[derive(Debug)]
struct Seen {
    /// The state of the files when the certificates in force were read.
    stamps: Vec<Stamp>,
    /// The error of the last reading, if it failed. It has been reported.
    fault: Option<String>,
}

/// Distinguishes the versions of a file: modification time and size. None if it cannot be inspected.
type Stamp = Option<(SystemTime, u64)>;

impl Certificates {
    /// Reads the files.
    pub(crate) fn load(plan: CertificatePlan) -> io::Result<Arc<Self>> {
        let seen = Mutex::new(Seen { stamps: plan.stamps(), fault: None });
        let loaded = ArcSwap::from_pointee(plan.read()?);
        Ok(Arc::new(Self { plan, loaded, seen }))
    }

    /// Whether these are the certificates of `plan`.
    pub(crate) fn is_for(&self, plan: &CertificatePlan) -> bool {
        self.plan == *plan
    }

    /// Reads the files again if they have changed. Returns whether there are new certificates.
    ///
    /// Files with an error are read again each time, because the cause may not be visible in their state. An error is
    /// returned only if it differs from the last one, so that it is reported once.
    pub(crate) fn refresh(&self) -> io::Result<bool> {
        // Another thread that reads them may be waiting for a disk.
        let Some(mut seen) = self.seen.try_lock() else { return Ok(false) };
        let now = self.plan.stamps();
        if seen.stamps == now {
            seen.fault = None;
            return Ok(false);
        }
        match self.plan.read() {
            Ok(loaded) => {
                self.loaded.store(Arc::new(loaded));
                *seen = Seen { stamps: now, fault: None };
                Ok(true)
            }
            Err(error) => {
                let fault = Some(error.to_string());
                if seen.fault == fault {
                    return Ok(false);
                }
                seen.fault = fault;
                Err(error)
            }
        }
    }

    /// The TLS configuration for clients that can negotiate these protocols. It uses the certificates in force at each
    /// handshake. After a change of the client authorities, a new configuration is needed.
    pub(crate) fn server_config(self: &Arc<Self>, protocols: &[&str]) -> Arc<rustls::ServerConfig> {
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks the versions that rustls does");
        let builder = match &self.loaded.load().client_verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl ResolvesServerCert for Certificates {
    /// The first certificate that is valid for the requested name, or else the first one, in the order of `places_for`.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = &self.loaded.load().keys;
        let ordered = || self.plan.places_for(hello.server_name()).filter_map(|place| keys.get(place));
        let named = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fitting = named.and_then(|name| ordered().find(|key| is_for(key, &name)));
        fitting.or_else(|| ordered().next()).cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = key.end_entity_cert().ok().and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
    parsed.is_some_and(|leaf| rustls::client::verify_server_name(&leaf, name).is_ok())
}

impl CertificatePlan {
    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        let pairs = self.files.iter().flat_map(|files| [&*files.chain, &*files.key]);
        pairs.chain(self.client_ca.as_deref()).map(stamp).collect()
    }

    fn read(&self) -> io::Result<LoadedFiles> {
        let keys = self.files.iter().map(read).collect::<io::Result<_>>()?;
        Ok(LoadedFiles { keys, client_verifier: self.client_ca.as_deref().map(read_client_ca).transpose()? })
    }
}

/// The error, with the path of the file.
fn wrong(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    bounded_file::read(path, CERTIFICATE_BYTES_MAX).map_err(|error| wrong(path, &error))
}

/// The certificates in a file, at least one.
fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(&bytes(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(path, &error))?;
    if certificates.is_empty() { Err(wrong(path, &"has no certificate in it")) } else { Ok(certificates) }
}

fn read_client_ca(path: &Path) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| wrong(path, &error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.map_err(|error| wrong(path, &error))
}

fn read(files: &CertificateFiles) -> io::Result<Arc<CertifiedKey>> {
    let chain = read_certificates(&files.chain)?;
    let key = PrivateKeyDer::from_pem_slice(&Zeroizing::new(bytes(&files.key)?))
        .map_err(|error| wrong(&files.key, &error))?;
    let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| wrong(&files.key, &error))?;
    Ok(Arc::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_certificates_are_read_again_and_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles { chain: folder.path().join("site.pem"), key: folder.path().join("site.key") };
        let certificate = || rcgen::generate_simple_self_signed(vec!["site".to_owned()]).unwrap();
        let (old, new) = (certificate(), certificate());
        fs::write(&files.chain, old.cert.pem()).unwrap();
        fs::write(&files.key, old.signing_key.serialize_pem()).unwrap();
        let plan = CertificatePlan::of_door(files.clone(), None);
        let certificates = Certificates::load(plan.clone()).unwrap();
        assert!(!certificates.refresh().unwrap(), "nothing has changed");
        // Invalid content of the same length and modification time as the content that follows.
        let changed_at = SystemTime::UNIX_EPOCH;
        let write_chain = |bytes: &[u8]| {
            fs::write(&files.chain, bytes).unwrap();
            fs::File::options().write(true).open(&files.chain).unwrap().set_modified(changed_at).unwrap();
        };
        fs::write(&files.key, new.signing_key.serialize_pem()).unwrap();
        write_chain(&vec![b'x'; new.cert.pem().len()]);
        let looks = plan.stamps();
        assert!(certificates.refresh().is_err());
        assert!(!certificates.refresh().unwrap(), "reported once");
        fs::remove_file(&files.chain).unwrap();
        assert!(certificates.refresh().is_err());
        assert!(!certificates.refresh().unwrap(), "another fault is reported, and once");
        write_chain(&vec![b'x'; new.cert.pem().len()]);
        assert!(certificates.refresh().is_err());
        write_chain(new.cert.pem().as_bytes());
        assert_eq!(plan.stamps(), looks);
        assert!(certificates.refresh().unwrap(), "tried again");
        assert_eq!(certificates.loaded.load().keys[0].cert.first(), Some(new.cert.der()));
        assert!(!certificates.refresh().unwrap());
    }
}

//! Tells others that an account was flagged, or its flag cleared.
//!
//! Each is posted as JSON and signed, so that who gets it knows where it is from. What is not taken is tried again, later and later, and given
//! up after a while; nobody waits for it, and what waits is bounded. The console and the log have it all the same.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::hmac;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::calendar::rfc3339;
use super::state::Flag;

/// How many announcements wait at most.
const WAITING_MAX: usize = 1024;
/// How often one is tried.
const TRIES: u32 = 8;
/// How long a try may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where to announce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookSettings {
    /// Whether TLS is spoken.
    pub(crate) tls: bool,
    /// Host and port.
    pub(crate) authority: String,
    /// The path.
    pub(crate) path: String,
    /// What announcements are signed with.
    pub(crate) secret: Vec<u8>,
}

/// Where the watch leaves what is to be announced.
#[derive(Clone, Debug)]
pub(crate) struct Announcer {
    waiting: Sender<String>,
    dropped: Arc<AtomicU64>,
}

/// What became of announcements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    /// Announcements that were taken.
    pub(crate) delivered: Arc<AtomicU64>,
    /// Announcements that were given up, or for which there was no room.
    pub(crate) dropped: Arc<AtomicU64>,
}

/// Both ends: where announcements are left, and what sends them until the process ends.
pub(crate) fn open(settings: WebhookSettings) -> (Announcer, Announced, impl Future<Output = ()> + Send) {
    let (waiting, announcements) = channel(WAITING_MAX);
    let announced = Announced::default();
    let announcer = Announcer { waiting, dropped: announced.dropped.clone() };
    (announcer, announced.clone(), send_all(settings, announcements, announced))
}

impl Announcer {
    /// An account was flagged, or its flag was cleared.
    pub(super) fn announce(&self, flag: &Flag) {
        let cleared = flag.cleared.as_ref();
        let body = json!({
            "event": if cleared.is_some() { "flag-cleared" } else { "flag-set" },
            "account": flag.account,
            "flagged_at": rfc3339(flag.flagged_at),
            "rejected": flag.rejected,
            "cleared_at": cleared.map(|cleared| rfc3339(cleared.at)),
            "cleared_by": cleared.map(|cleared| &cleared.by),
            "note": cleared.map(|cleared| &cleared.note),
        });
        if self.waiting.try_send(body.to_string()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn send_all(settings: WebhookSettings, mut announcements: Receiver<String>, announced: Announced) {
    while let Some(body) = announcements.recv().await {
        let mut wait = Duration::from_millis(500);
        for tried in 1..=TRIES {
            match tokio::time::timeout(PATIENCE, post(&settings, &body)).await {
                Ok(Ok(())) => {
                    announced.delivered.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                outcome if tried == TRIES => {
                    announced.dropped.fetch_add(1, Ordering::Relaxed);
                    let error = outcome.map_or_else(|_| "no answer".to_owned(), |posted| format!("{posted:?}"));
                    tracing::warn!(to = settings.authority, error, "an announcement of a flag was given up");
                }
                _ => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
    }
}

async fn post(settings: &WebhookSettings, body: &str) -> io::Result<()> {
    let stream = TcpStream::connect(&settings.authority).await?;
    if !settings.tls {
        return talk(stream, settings, body).await;
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = settings.authority.rsplit_once(':').map_or(&*settings.authority, |(name, _)| name);
    let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
    talk(tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?, settings, body).await
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: &WebhookSettings,
    body: &str,
) -> io::Result<()> {
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nUser-Agent: tollgate\r\nX-Tollgate-Signature: sha256={}\r\nConnection: close\r\n\r\n{body}",
        settings.path,
        settings.authority,
        body.len(),
        signature(&settings.secret, body)
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    match &head {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2', ..] => Ok(()),
        _ => Err(io::Error::other(String::from_utf8_lossy(&head).into_owned())),
    }
}

/// The body, under the secret: HMAC-SHA-256, in hexadecimal.
fn signature(secret: &[u8], body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, body.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 4231, 4.3.
    #[test]
    fn the_signature_is_the_one_that_others_compute() {
        let expect = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature(b"Jefe", "what do ya want for nothing?"), expect);
    }
}

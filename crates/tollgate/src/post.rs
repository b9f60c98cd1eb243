//! `POST` to one path of another server: announcements of flags, and telemetry.

use std::io;
use std::time::Duration;

use http::Method;

use crate::http_client::{HttpClient, HttpRequest};

/// How long it may take, from connecting to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much of an answer is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Where to send, and how.
#[derive(Clone)]
pub(crate) struct Poster {
    client: HttpClient,
    path: String,
}

impl Poster {
    /// Sends to a path of a host and port, which for TLS has to show a certificate that this system trusts.
    pub(crate) fn new(tls: bool, authority: &str, path: &str) -> io::Result<Self> {
        Ok(Self { client: HttpClient::new(tls, authority)?, path: path.to_owned() })
    }

    /// Where it sends to.
    pub(crate) fn authority(&self) -> &str {
        self.client.authority()
    }

    /// Sends a body with these header fields. The status of the answer comes back.
    pub(crate) async fn post(&self, fields: &[(&str, &str)], body: &[u8]) -> io::Result<u16> {
        let (method, path) = (Method::POST, &*self.path);
        let request =
            HttpRequest { method, path, fields, body, answer_bytes_max: ANSWER_BYTES_MAX, patience: PATIENCE };
        Ok(self.client.send(&request).await?.status)
    }
}

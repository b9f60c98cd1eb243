//! Sends `POST` requests to one path of another server: announcements of flags, and telemetry.

use std::io;
use std::time::Duration;

use http::Method;

use crate::http_client::{HttpClient, HttpRequest};
use crate::settings::WebUrl;

/// Timeout from connecting to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Server and path.
#[derive(Clone)]
pub(crate) struct Poster {
    client: HttpClient,
    path: String,
}

impl Poster {
    /// Creates a poster. With TLS, the certificate of the server must be trusted by this system.
    pub(crate) fn new(url: WebUrl) -> io::Result<Self> {
        Ok(Self { client: HttpClient::new(url.tls, &url.authority)?, path: url.path })
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> &str {
        &self.client.authority
    }

    /// Sends a body with these header fields. Returns the status of the response.
    pub(crate) async fn post(&self, fields: &[(&str, &str)], body: &[u8]) -> io::Result<u16> {
        let (method, path) = (Method::POST, &*self.path);
        let request = HttpRequest { method, path, fields, body, answer_bytes_max: ANSWER_BYTES_MAX, timeout: TIMEOUT };
        Ok(self.client.send(&request).await?.status)
    }
}

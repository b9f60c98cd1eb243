//! Sends `POST` requests to one URL: webhooks that announce flagged accounts, and telemetry.

use std::io;
use std::time::Duration;

use http::Method;

use crate::http_client::{HttpClient, HttpRequest};
use crate::settings::WebUrl;

/// Timeout from connecting to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response that is read, in bytes. Only the status is used.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A client for one URL.
#[derive(Clone)]
pub(crate) struct Poster {
    client: HttpClient,
    path: String,
}

impl Poster {
    /// Creates the client. With TLS, this system must trust the certificate of the server.
    pub(crate) fn new(url: WebUrl) -> io::Result<Self> {
        Ok(Self { client: HttpClient::new(url.tls, &url.authority)?, path: url.path })
    }

    /// Host and port of the server.
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

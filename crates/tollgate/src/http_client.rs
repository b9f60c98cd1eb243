//! An HTTP/1.1 client for rare requests, with or without TLS: those of commands to the admin address, webhooks and
//! telemetry. Each request has its own connection.
//!
//! A response counts only when it is complete. A truncated one is an error whatever its status, because the server may
//! not have completed the request.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::client_tls;

/// After this time the certificate authorities of the system are read again, because updates of the system change them.
const ROOTS_AGE_MAX: Duration = Duration::from_secs(3600);

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    /// Host and port.
    pub(crate) authority: String,
    /// Name that the server's certificate must have; `None` without TLS.
    name: Option<ServerName<'static>>,
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Body; `None` if it is larger than the bound of the request.
    pub(crate) body: Option<Bytes>,
}

/// A request, and the bounds on its response.
pub(crate) struct HttpRequest<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// Names and values of header fields. The values are marked as sensitive, because one may be a token.
    pub(crate) fields: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
    /// Largest body of the response, in bytes.
    pub(crate) answer_bytes_max: usize,
    /// Timeout for the whole exchange.
    pub(crate) timeout: Duration,
}

impl HttpClient {
    /// Creates a client of the server at a host and port. With TLS, this system must trust the server's certificate.
    pub(crate) fn new(is_tls: bool, authority: &str) -> io::Result<Self> {
        let name = if is_tls { Some(server_name(authority)?) } else { None };
        Ok(Self { authority: authority.to_owned(), name })
    }

    /// Sends a request on a new connection, and reads the response.
    pub(crate) async fn send(&self, request: &HttpRequest<'_>) -> io::Result<HttpAnswer> {
        let exchange = async {
            let stream = TcpStream::connect(&self.authority).await?;
            match &self.name {
                None => self.exchange(stream, request).await,
                Some(name) => {
                    let stream = connector().await?.connect(name.clone(), stream).await?;
                    self.exchange(stream, request).await
                }
            }
        };
        tokio::time::timeout(request.timeout, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: &HttpRequest<'_>,
    ) -> io::Result<HttpAnswer> {
        // Title case, because some receivers wrongly compare header names by case.
        let builder = http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(stream));
        let (mut sender, connection) = builder.await.map_err(explained)?;
        // Dropping the set aborts the task of the connection.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let response = sender.send_request(self.request(request)?).await.map_err(explained)?;
        let status = response.status().as_u16();
        let body = match Limited::new(response.into_body(), request.answer_bytes_max).collect().await {
            Ok(body) => Some(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => None,
            Err(error) => return Err(io::Error::other(format!("the response is truncated: {error}"))),
        };
        drop(driver);
        Ok(HttpAnswer { status, body })
    }

    fn request(&self, request: &HttpRequest<'_>) -> io::Result<Request<Full<Bytes>>> {
        let HttpRequest { method, path, fields, body, .. } = request;
        let mut built = Request::builder().method(method).uri(*path);
        if let Some(headers) = built.headers_mut() {
            headers.insert(HOST, self.authority.parse().map_err(io::Error::other)?);
            headers.insert(USER_AGENT, HeaderValue::from_static("tollgate"));
            headers.insert(CONTENT_LENGTH, body.len().into());
            for (name, value) in *fields {
                let mut value = HeaderValue::from_str(value).map_err(io::Error::other)?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(io::Error::other)?, value);
            }
        }
        built.body(Full::new(Bytes::copy_from_slice(body))).map_err(io::Error::other)
    }
}

/// Adds the cause of an error to its message.
fn explained(error: hyper::Error) -> io::Error {
    match error.source() {
        Some(source) => io::Error::other(format!("{error}: {source}")),
        None => io::Error::other(error),
    }
}

/// TLS connector. The certificate authorities of the system are hundreds of files, so they are read on a blocking
/// thread and cached.
async fn connector() -> io::Result<TlsConnector> {
    static CONFIG: Mutex<Option<(Instant, Arc<rustls::ClientConfig>)>> = Mutex::const_new(None);
    let mut kept = CONFIG.lock().await;
    if let Some((read_at, config)) = &*kept
        && read_at.elapsed() < ROOTS_AGE_MAX
    {
        return Ok(TlsConnector::from(config.clone()));
    }
    let config = tokio::task::spawn_blocking(|| client_tls::config(true)).await.map_err(io::Error::other)??;
    *kept = Some((Instant::now(), config.clone()));
    Ok(TlsConnector::from(config))
}

/// The host of an authority, without its port and without the brackets of an IPv6 address.
fn server_name(authority: &str) -> io::Result<ServerName<'static>> {
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Sends a request to a server that sends this response. The server then closes the connection if `ends`.
    async fn answered(answer: &'static [u8], ends: bool) -> io::Result<HttpAnswer> {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            let _ = theirs.read(&mut [0; 4096]).await.unwrap();
            theirs.write_all(answer).await.unwrap();
            if !ends {
                std::future::pending::<()>().await;
            }
        });
        let request = HttpRequest {
            method: Method::POST,
            path: "/",
            fields: &[("X-A", "b")],
            body: b"{}",
            answer_bytes_max: 8,
            timeout: Duration::from_secs(1),
        };
        let client = HttpClient::new(false, "h:80")?;
        tokio::time::timeout(Duration::from_millis(300), client.exchange(ours, &request)).await?
    }

    #[tokio::test]
    async fn a_complete_response_is_returned() {
        let is = |answer: io::Result<HttpAnswer>, status, body: &'static [u8]| {
            assert_eq!(answer.unwrap(), HttpAnswer { status, body: Some(Bytes::from_static(body)) });
        };
        is(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", false).await, 200, b"hi");
        is(answered(b"HTTP/1.1 204 No Content\r\n\r\n", false).await, 204, b"");
        is(answered(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\n\r\nno", true).await, 500, b"no");
        let chunked = b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        is(answered(chunked, false).await, 404, b"abc");
    }

    #[tokio::test]
    async fn a_truncated_response_is_an_error() {
        for (answer, ends) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"[..], true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", false),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", true),
            (b"HTTP/1.1 204 No Content\r\n", true),
            (b"HTTP/1.1 100 Continue\r\n\r\n", true),
            (b"SSH-2.0-x\r\n\r\n", true),
            (b"", true),
        ] {
            assert!(answered(answer, ends).await.is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }

    #[tokio::test]
    async fn the_body_of_a_response_is_bounded() {
        let answer = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", false).await.unwrap();
        assert_eq!(answer, HttpAnswer { status: 200, body: None });
    }

    #[tokio::test]
    async fn the_certificate_authorities_of_the_system_are_read_once() {
        let (first, second) = (connector().await.unwrap(), connector().await.unwrap());
        assert!(Arc::ptr_eq(first.config(), second.config()));
    }

    #[test]
    fn the_name_in_a_certificate_is_the_host_without_its_port() {
        let name = |authority| server_name(authority).unwrap().to_str().into_owned();
        assert_eq!(name("hooks.example:443"), "hooks.example");
        assert_eq!(name("[2001:db8::1]:443"), "2001:db8::1");
    }
}

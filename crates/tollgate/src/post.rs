//! One `POST` to somewhere else, on a connection of its own: for what is sent seldom, to whoever wants to be told.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long it may take, from connecting to the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much of an answer is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// How long the rest of an answer is heard.
const LINGER: Duration = Duration::from_secs(1);

/// Where to send, and how.
#[derive(Clone)]
pub(crate) struct Poster {
    authority: String,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Poster {
    /// Sends to a path of a host and port, which for TLS has to show a certificate that this system trusts.
    pub(crate) fn new(tls: bool, authority: &str, path: &str) -> io::Result<Self> {
        let tls = if tls { Some((connector()?, server_name(authority)?)) } else { None };
        Ok(Self { authority: authority.to_owned(), path: path.to_owned(), tls })
    }

    /// Where it sends to.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Sends a body with these header fields. The status of the answer comes back.
    pub(crate) async fn post(&self, fields: &[(&str, &str)], body: &[u8]) -> io::Result<u16> {
        let posting = async {
            let stream = TcpStream::connect(&self.authority).await?;
            match &self.tls {
                None => self.talk(stream, fields, body).await,
                Some((connector, name)) => {
                    self.talk(connector.connect(name.clone(), stream).await?, fields, body).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, posting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn talk(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<u16> {
        let mut request = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tollgate\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.path,
            self.authority,
            body.len()
        );
        fields.iter().for_each(|(name, value)| request.extend([name, ": ", value, "\r\n"]));
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await?;
        // Its head says it all, and not everybody ends the connection after an answer.
        let (mut stream, mut answer) = (stream.take(ANSWER_BYTES_MAX), Vec::<u8>::with_capacity(1024));
        let failed = loop {
            match stream.read_buf(&mut answer).await {
                Ok(0) => break None,
                Ok(_) if head_end(after_interim(&answer)).is_some() => break None,
                Ok(_) => {}
                Err(error) => break Some(error),
            }
        };
        // Who is still at it is not interrupted at once.
        let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
        status(after_interim(&answer))
            .filter(|status| *status >= 200)
            .ok_or_else(|| failed.unwrap_or_else(|| io::Error::other("the answer is not HTTP")))
    }
}

/// What comes after the heads that say only that there is more to come (1xx).
fn after_interim(mut answer: &[u8]) -> &[u8] {
    while let (Some(100..=199), Some(end)) = (status(answer), head_end(answer)) {
        answer = &answer[end..];
    }
    answer
}

/// Where the head of an answer ends, if all of it is there.
fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The status that an answer begins with.
fn status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn connector() -> io::Result<TlsConnector> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn server_name(authority: &str) -> io::Result<ServerName<'static>> {
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_from_an_answer_and_from_nothing_else() {
        assert_eq!(status(b"HTTP/1.1 204 No Content\r\n\r\n"), Some(204));
        assert_eq!(status(b"HTTP/1.0 503"), Some(503));
        for odd in [&b""[..], b"HTTP/1.1", b"HTTP/1.1 2", b"HTTP/2 200", b"SSH-2.0-x", b"HTTP/1.1 ab\xff"] {
            assert_eq!(status(odd), None);
        }
    }

    /// What comes of posting to somebody who answers with this, and then ends the connection or does nothing at all.
    async fn answered(answer: &[u8], ends: bool) -> io::Result<u16> {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_all(answer).await?;
        if ends {
            theirs.shutdown().await?;
        }
        let poster = Poster::new(false, "h:80", "/")?;
        poster.talk(ours, &[], b"{}").await
    }

    #[tokio::test]
    async fn an_answer_is_known_once_its_head_is_there() {
        assert_eq!(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", false).await.unwrap(), 200);
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 500 No\r\n\r\nno";
        assert_eq!(answered(interim, false).await.unwrap(), 500);
        assert_eq!(answered(b"HTTP/1.1 204 No Content\r\n", true).await.unwrap(), 204);
        for none in [&b"HTTP/1.1 100 Continue\r\n\r\n"[..], b"HTTP/1.1 100 Continue", b"SSH-2.0-x\r\n\r\n", b""] {
            assert!(answered(none, true).await.is_err());
        }
    }

    #[test]
    fn the_name_in_a_certificate_is_the_host_without_its_port() {
        let name = |authority| server_name(authority).unwrap().to_str().into_owned();
        assert_eq!(name("hooks.example:443"), "hooks.example");
        assert_eq!(name("[2001:db8::1]:443"), "2001:db8::1");
    }
}

//! A minimal HTTP/1.1 client with a chosen source address.
//!
//! The load generator plays people and the crawler with it. Client libraries pool connections, retry and choose
//! addresses by themselves, each of which would change the measurement.

use crate::{
    crowd::Crowd,
    page::Kind,
    tally::Failure,
    target::{Identity, Target},
};
use std::{io, net::Ipv4Addr, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpSocket,
};

const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
const CHUNK_LINE_BYTES_MAX: usize = 1024;
const CHUNK_BYTES_MAX: usize = 16 << 20;

/// One client, with at most one keep-alive connection.
pub struct Client {
    crowd: Crowd,
    /// The address that the client comes from.
    source: Ipv4Addr,
    target: Arc<Target>,
    connection: Option<Connection>,
}

impl Client {
    /// A client of this target, without a connection.
    pub const fn new(crowd: Crowd, source: Ipv4Addr, target: Arc<Target>) -> Self {
        Self { crowd, source, target, connection: None }
    }

    /// Requests `path`; anything but a 200 is a failure.
    pub async fn ask(&mut self, path: &str) -> Result<(), Failure> {
        let answer = self.exchange(path).await.map_err(|_| Failure::Broken)?;
        match answer.status {
            200 => Ok(()),
            status => Err(Failure::Refused(status)),
        }
    }

    /// Requests page number `id` of this kind; see [`Target::path`] for `alike`.
    pub(crate) async fn ask_page(&mut self, kind: Kind, id: u64, alike: bool) -> Result<(), Failure> {
        let path = self.target.path(kind, id, alike);
        self.ask(&path).await
    }

    async fn exchange(&mut self, path: &str) -> io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.source, &self.target).await?,
        };
        let request = self.target.request(path, self.crowd, self.source);
        let answer = connection.fetch(&request).await?;
        self.connection = answer.reusable.then_some(connection);
        Ok(answer)
    }
}

/// Opens a connection to the target as one client, with the handshake of TLS if it has one.
pub async fn reach(source: Ipv4Addr, target: &Target) -> io::Result<()> {
    Connection::open(source, target).await.map(drop)
}

struct Connection {
    stream: Box<dyn ByteStream>,
    buffer: Vec<u8>,
}

/// A connection, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// The status of a response, and whether the connection can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    reusable: bool,
}

/// A response head with the length of its body.
struct Head {
    answer: Answer,
    /// The length of the head.
    bytes: usize,
    body: BodyLength,
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyLength {
    Bytes(usize),
    Chunked,
    UntilClose,
}

impl Connection {
    async fn open(source: Ipv4Addr, target: &Target) -> io::Result<Self> {
        let socket = if target.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // One address opens thousands of connections per minute, so its ports must be reusable during
        // TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.set_nodelay(true)?;
        if target.identity == Identity::Source {
            socket.bind((source, 0).into())?;
        }
        let plain = socket.connect(target.address).await?;
        let stream: Box<dyn ByteStream> = match &target.tls {
            None => Box::new(plain),
            Some(tls) => Box::new(tls.connect(plain).await?),
        };
        Ok(Self { stream, buffer: Vec::with_capacity(8 * 1024) })
    }

    async fn fetch(&mut self, request: &str) -> io::Result<Answer> {
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        self.buffer.clear();
        let head = loop {
            if let Some(head) = parse(&self.buffer)? {
                break head;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.read_more().await?;
        };
        match head.body {
            BodyLength::Bytes(body_bytes) => self.read_body(head.bytes + body_bytes).await?,
            BodyLength::Chunked => self.read_chunks(head.bytes).await?,
            BodyLength::UntilClose => while self.stream.read(&mut [0; 4096]).await? > 0 {},
        }
        Ok(head.answer)
    }

    /// Reads and discards the response up to `end`, counted from the start of its head.
    async fn read_body(&mut self, end: usize) -> io::Result<()> {
        let mut missing = end.saturating_sub(self.buffer.len());
        while missing > 0 {
            self.buffer.clear();
            self.read_more().await?;
            missing = missing.saturating_sub(self.buffer.len());
        }
        Ok(())
    }

    /// Reads chunks, of which the first starts at `at` in the buffer, up to the last one.
    async fn read_chunks(&mut self, mut at: usize) -> io::Result<()> {
        loop {
            let line_end = loop {
                match self.buffer[at..].windows(2).position(|two| two == b"\r\n") {
                    Some(end) => break at + end,
                    None if self.buffer.len() - at > CHUNK_LINE_BYTES_MAX => {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    None => self.read_more().await?,
                }
            };
            let size = self.buffer[at..line_end].split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            let size = std::str::from_utf8(size).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
            let Some(size) = size.filter(|size| *size <= CHUNK_BYTES_MAX) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            // A chunk ends with CR LF, and so does the empty trailer after the last one.
            let end = line_end + 2 + size + 2;
            while self.buffer.len() < end {
                self.read_more().await?;
            }
            if size == 0 {
                return Ok(());
            }
            self.buffer.drain(..end);
            at = 0;
        }
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(bytes) = status else { return Ok(None) };
    let value = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let length = value("content-length").and_then(|value| value.parse().ok());
    let body = match (value("transfer-encoding"), response.code, length) {
        (_, Some(204 | 304), _) => BodyLength::Bytes(0),
        (Some(coding), ..) if coding.eq_ignore_ascii_case("chunked") => BodyLength::Chunked,
        (None, _, Some(bytes)) => BodyLength::Bytes(bytes),
        _ => BodyLength::UntilClose,
    };
    let close = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let reusable = !close && body != BodyLength::UntilClose && response.version == Some(1);
    let status = response.code.unwrap_or_default();
    Ok(Some(Head { answer: Answer { status, reusable }, bytes, body }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::net::TcpListener;

    /// Answers the first request with `bytes` and closes. Returns the client's result and its address.
    async fn check(bytes: &'static [u8]) -> (io::Result<Answer>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, peer) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            stream.write_all(bytes).await.unwrap();
            peer
        });
        let (target, source) = (Target::new(target), Ipv4Addr::new(127, 3, 2, 1));
        let mut connection = Connection::open(source, &target).await.unwrap();
        let answer = connection.fetch(&target.request("/", Crowd::Human, source)).await;
        (answer, server.await.unwrap())
    }

    #[tokio::test]
    async fn a_client_comes_from_the_address_it_was_given() {
        let (answer, peer) = check(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(answer.unwrap(), Answer { status: 200, reusable: true });
        assert_eq!(peer.ip(), Ipv4Addr::new(127, 3, 2, 1));
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closes_is_not_used_again() {
        let (answer, _) = check(b"HTTP/1.1 429 -\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(answer.unwrap(), Answer { status: 429, reusable: false });
        let (answer, _) = check(b"HTTP/1.0 503 -\r\n\r\nsorry").await;
        assert_eq!(answer.unwrap(), Answer { status: 503, reusable: false });
    }

    #[tokio::test]
    async fn a_chunked_answer_is_read_to_its_end() {
        let (answer, _) =
            check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n")
                .await;
        assert_eq!(answer.unwrap(), Answer { status: 200, reusable: true });
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice();
        for rest in [b"3\r\nab".as_slice(), b"x\r\n", b"ffffffffffffffff\r\n", b""] {
            assert!(check([chunked, rest].concat().leak()).await.0.is_err());
        }
    }

    #[tokio::test]
    async fn half_an_answer_is_a_failure() {
        for bytes in
            [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc".as_slice(), b"HTTP/1.1 20", b"", b"nonsense\r\n\r\n"]
        {
            assert!(check(bytes).await.0.is_err());
        }
    }
}

//! A minimal HTTP/1.1 client with a chosen source address.
//!
//! Client libraries pool connections, retry and choose addresses by themselves, each of which would change
//! the measurement.

use crate::{
    crowd::{self, Crowd},
    tally::Failure,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// One client: its crowd, source, target, and keep-alive connection.
pub struct Client {
    crowd: Crowd,
    source: Ipv4Addr,
    target: SocketAddr,
    connection: Option<Connection>,
}

impl Client {
    /// A client without a connection.
    pub const fn new(crowd: Crowd, source: Ipv4Addr, target: SocketAddr) -> Self {
        Self { crowd, source, target, connection: None }
    }

    /// Requests `path`; anything but the page is a failure.
    pub async fn ask(&mut self, path: &str) -> Result<(), Failure> {
        let answer = self.exchange(path).await.map_err(|_| Failure::Broken)?;
        match answer.status {
            200 => Ok(()),
            status => Err(Failure::Refused(status)),
        }
    }

    async fn exchange(&mut self, path: &str) -> io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.source, self.target).await?,
        };
        let answer = connection.fetch(path, self.crowd).await?;
        self.connection = answer.reusable.then_some(connection);
        Ok(answer)
    }
}

struct Connection {
    stream: TcpStream,
    host: SocketAddr,
    buffer: Vec<u8>,
}

/// The status of a response, and whether the connection can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    reusable: bool,
}

/// A response head with the length of its body.
struct Head {
    answer: Answer,
    bytes: usize,
    body_bytes: Option<usize>,
}

impl Connection {
    async fn open(source: Ipv4Addr, target: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // One address opens thousands of connections per minute, so its ports must be reusable during
        // TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.set_nodelay(true)?;
        socket.bind((source, 0).into())?;
        let stream = socket.connect(target).await?;
        Ok(Self { stream, host: target, buffer: Vec::with_capacity(8 * 1024) })
    }

    async fn fetch(&mut self, path: &str, crowd: Crowd) -> io::Result<Answer> {
        let (host, name) = (self.host, crowd.name());
        let agent = if crowd == Crowd::Crawler { "crawler/1.0" } else { "Mozilla/5.0 (X11; Linux x86_64)" };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nAccept: */*\r\n{}: {name}\r\n\r\n",
            crowd::HEADER
        );
        self.stream.write_all(request.as_bytes()).await?;
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
        match head.body_bytes {
            Some(body_bytes) => self.read_body(head.bytes + body_bytes).await?,
            None => while self.stream.read(&mut [0; 4096]).await? > 0 {},
        }
        Ok(head.answer)
    }

    async fn read_body(&mut self, end: usize) -> io::Result<()> {
        let mut missing = end.saturating_sub(self.buffer.len());
        while missing > 0 {
            self.buffer.clear();
            self.read_more().await?;
            missing = missing.saturating_sub(self.buffer.len());
        }
        Ok(())
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
    if value("transfer-encoding").is_some() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected chunked response"));
    }
    let body_bytes = value("content-length").and_then(|value| value.parse().ok());
    let close = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let reusable = !close && body_bytes.is_some() && response.version == Some(1);
    let status = response.code.unwrap_or_default();
    Ok(Some(Head { answer: Answer { status, reusable }, bytes, body_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut connection = Connection::open(Ipv4Addr::new(127, 3, 2, 1), target).await.unwrap();
        let answer = connection.fetch("/", Crowd::Human).await;
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
    async fn half_an_answer_is_a_failure() {
        for bytes in
            [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc".as_slice(), b"HTTP/1.1 20", b"", b"nonsense\r\n\r\n"]
        {
            assert!(check(bytes).await.0.is_err());
        }
    }
}

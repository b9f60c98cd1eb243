//! An HTTP/1.1 client for tests that send arbitrary bytes. It parses responses strictly: a malformed one fails the
//! test, and so does one that ends within a line. One that ends elsewhere before its end is `None`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use super::PATIENCE;

/// Names and values of header fields or trailers, in the order received.
pub type Fields = Vec<(String, String)>;

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub fields: Fields,
    pub body: Vec<u8>,
    /// Names in lower case.
    pub trailers: Fields,
}

impl Response {
    /// The first value of a field. The name must be in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends bytes and reads one response.
pub fn roundtrip(mut stream: TcpStream, bytes: &[u8]) -> Response {
    stream.write_all(bytes).unwrap();
    read_response(&mut BufReader::new(stream)).unwrap()
}

/// Reads one final response to a request other than a HEAD; `None` if the connection ends before its end.
pub fn read_response(reader: &mut impl BufRead) -> Option<Response> {
    read_response_to(reader, false)
}

/// Reads one final response; `None` if the connection ends before its end. With `to_head`, the request was a HEAD, so
/// the response has no body.
pub fn read_response_to(reader: &mut impl BufRead, to_head: bool) -> Option<Response> {
    loop {
        let response = read_any_response(reader, to_head)?;
        if response.status >= 200 || response.status == 101 {
            return Some(response);
        }
    }
}

/// Reads one response, which may be an interim one (1xx); `None` if the connection ends before its end.
pub fn read_any_response(reader: &mut impl BufRead, to_head: bool) -> Option<Response> {
    let line = read_line(reader)?;
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
    let mut fields = read_fields(reader, read_line)?;
    lower_names(&mut fields);
    let mut response = Response { status, fields, body: Vec::new(), trailers: Vec::new() };
    if to_head || status < 200 || status == 204 || status == 304 {
        return Some(response);
    }
    match (response.field("content-length"), response.field("transfer-encoding")) {
        (Some(length), None) => {
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).ok()?;
            response.body = body;
        }
        (None, Some("chunked")) => {
            (response.body, response.trailers) = read_chunks(reader, read_line)?;
            lower_names(&mut response.trailers);
        }
        (None, None) => {
            reader.read_to_end(&mut response.body).ok()?;
        }
        framing => panic!("a response with another framing, or with two: {framing:?}"),
    }
    Some(response)
}

fn read_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(line.strip_suffix("\r\n").unwrap_or_else(|| panic!("a line without CRLF: {line:?}")).to_owned()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        Err(error) => panic!("no answer: {error}"),
    }
}

fn lower_names(fields: &mut [(String, String)]) {
    fields.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
}

/// Reads header fields or trailers with the empty line after them; `read_line` reads one line.
pub(super) fn read_fields<R: BufRead>(reader: &mut R, read_line: impl Fn(&mut R) -> Option<String>) -> Option<Fields> {
    let mut fields = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Some(fields);
        }
        let (name, value) = line.split_once(':').unwrap();
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Reads a body in chunks and its trailers.
pub(super) fn read_chunks<R: BufRead>(
    reader: &mut R,
    read_line: impl Fn(&mut R) -> Option<String>,
) -> Option<(Vec<u8>, Fields)> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&read_line(reader)?, 16).unwrap();
        if size == 0 {
            return Some((body, read_fields(reader, read_line)?));
        }
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        assert!(chunk.ends_with(b"\r\n"));
        body.extend_from_slice(&chunk[..size]);
    }
}

/// Reads all responses until the connection ends. None may be that of a HEAD.
pub fn all_responses(stream: TcpStream) -> Vec<Response> {
    let mut reader = BufReader::new(stream);
    std::iter::from_fn(|| read_response(&mut reader)).collect()
}

/// Whether the peer closes the connection without sending more, before the read timeout.
pub fn is_closed(mut stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Connects from this IPv4 loopback address, so that the gate sees a separate client.
pub fn connect_from(address: IpAddr, to: SocketAddr) -> TcpStream {
    socket_from(address, to, |_| Ok(()))
}

/// Connects from this IPv4 address with a socket that `prepare` has configured.
pub fn socket_from(
    address: IpAddr,
    to: SocketAddr,
    prepare: impl FnOnce(&socket2::Socket) -> std::io::Result<()>,
) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    prepare(&socket).unwrap();
    socket.bind(&SocketAddr::new(address, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

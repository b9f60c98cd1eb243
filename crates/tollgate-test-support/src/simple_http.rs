//! Single HTTP requests on new connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::PATIENCE;

/// A response.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let field = |line: &'_ str| line.split_once(": ").is_some_and(|(known, _)| known.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| field(line)).map(|line| line.split_once(": ").unwrap().1)
    }
}

/// Sends a request on a new connection.
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
    ask_for(PATIENCE, address, method, path, headers, body)
}

/// Sends a request with this timeout.
pub fn ask_for(
    patience: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> HttpAnswer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("Host: {address}\r\n");
    }
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    text += "\r\n";
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    // A server that rejects a request need not read its body.
    let _ = stream.write_all(body.as_bytes());
    let answer = String::from_utf8_lossy(&whole(&mut stream)).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    let body =
        if head.to_lowercase().contains("transfer-encoding: chunked") { dechunked(body) } else { body.to_owned() };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpAnswer { status, head: head.to_owned(), body }
}

/// Reads a response to its end, which need not be the end of the connection.
fn whole(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut bytes) = (Vec::new(), [0; 16384]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return answer,
            Ok(read) => answer.extend_from_slice(&bytes[..read]),
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if length.is_some_and(|length| answer.len() >= end + 4 + length) {
            return answer;
        }
    }
}

fn dechunked(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body += &rest[..length];
        chunks = rest[length..].trim_start_matches("\r\n");
    }
    body
}

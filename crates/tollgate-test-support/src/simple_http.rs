//! Single HTTP/1.1 requests with text bodies, each on a new connection.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::PATIENCE;
use super::client::{Fields, read_response_to};

/// A response.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in lower case.
    pub fields: Fields,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
    let response = read_response_to(&mut BufReader::new(stream), method == "HEAD").expect("an answer");
    HttpAnswer { status: response.status, body: response.text(), fields: response.fields }
}

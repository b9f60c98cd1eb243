//! A terminal's way to the address for operators: plain HTTP/1.1, one request on one connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer that is larger is not for a terminal.
const BYTES_MAX: u64 = 32 << 20;
/// Where the token is, unless it is in a file.
const TOKEN_VARIABLE: &str = "TOLLGATE_TOKEN";

/// Where the address is, and what to show there.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminOptions {
    /// The address for operators
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8889")]
    admin: String,
    /// The file with the token, if one is asked for [default: the variable TOLLGATE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// What went wrong, in words for a person.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    message: String,
    /// Whether the arguments are wrong, rather than the other side.
    pub(crate) is_wrong: bool,
}

impl NoAnswer {
    /// Something other than the arguments went wrong.
    pub(crate) fn new(message: String) -> Self {
        Self { message, is_wrong: false }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Somebody who asks.
pub(crate) struct AdminClient {
    host: String,
    token: Option<String>,
}

impl AdminClient {
    /// Somebody who asks where these arguments say.
    pub(crate) fn new(options: &AdminOptions) -> Result<Self, NoAnswer> {
        let wrong = |message: String| NoAnswer { message, is_wrong: true };
        let text = &*options.admin;
        let host = match text.split_once("://") {
            None => text,
            Some(("http", host)) => host,
            Some((scheme, _)) => {
                return Err(wrong(format!("{scheme} is not spoken here: give --admin http://HOST:PORT")));
            }
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', ' ']) || host.contains(char::is_control) {
            return Err(wrong(format!("{text:?} is no address: give --admin http://HOST:PORT")));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:8889") };
        let token = match &options.token_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                let token = read.map_err(|error| wrong(format!("the token file {}: {error}", path.display())))?;
                Some(token.trim().to_owned())
            }
            None => std::env::var(TOKEN_VARIABLE).ok(),
        };
        if token.as_ref().is_some_and(|token| token.contains(char::is_control)) {
            return Err(wrong("the token has to be one word".to_owned()));
        }
        Ok(Self { host, token })
    }

    /// The host that is asked.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The answer to `GET`.
    pub(crate) fn get(&self, path: &str) -> Result<Value, NoAnswer> {
        self.ask("GET", path, "")
    }

    /// The answer to a request.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, NoAnswer> {
        let bytes = self.exchange(method, path, body).map_err(|error| NoAnswer {
            message: format!("nobody answers at {}: {error}; is a gate running there?", self.host),
            is_wrong: false,
        })?;
        let failed = |message: String| NoAnswer { message, is_wrong: false };
        let (status, body) = read(&bytes).ok_or_else(|| failed(format!("{} does not speak HTTP", self.host)))?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match status {
            200..=299 => Ok(answer),
            401 => {
                Err(failed(format!("{} asks for a token: give --token-file FILE or set {TOKEN_VARIABLE}", self.host)))
            }
            _ => Err(failed(answer["detail"].as_str().map_or_else(|| format!("status {status}"), str::to_owned))),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut last = io::Error::other("the name is not known");
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return self.talk(stream, method, path, body),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn talk(&self, mut stream: TcpStream, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let token = self.token.as_ref().map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{token}\r\n",
            self.host,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// The status and the body of an answer.
fn read(bytes: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = &bytes[end + 4..];
    Some((status, if chunked { join_chunks(body)? } else { body.to_vec() }))
}

fn join_chunks(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&chunks[..line]).ok()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        let begin = line + 2;
        body.extend_from_slice(chunks.get(begin..begin.checked_add(length)?)?);
        chunks = chunks.get(begin + length + 2..)?;
    }
}

/// A text as part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A name for a terminal: nothing in it can move the cursor, change colours or look like another line.
pub(crate) fn harmless(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars()
        .flat_map(|c| {
            if hidden(c) { c.escape_unicode().collect::<String>() } else { c.to_string() }.chars().collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(admin: &str) -> Result<AdminClient, NoAnswer> {
        AdminClient::new(&AdminOptions { admin: admin.to_owned(), token_file: None })
    }

    #[test]
    fn an_address_is_read_and_nonsense_is_wrong() {
        for (admin, host) in [
            ("http://127.0.0.1:8889", "127.0.0.1:8889"),
            ("http://gate.example/", "gate.example:8889"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(client(admin).unwrap().host(), host);
        }
        for admin in ["https://x", "http://", "http://a b", "http://a/b", "http://u@h"] {
            assert!(client(admin).is_err_and(|wrong| wrong.is_wrong), "{admin}");
        }
    }

    #[test]
    fn answers_are_read_in_pieces_too() {
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Some((200, b"hi".to_vec())));
        let chunked = b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Some((404, b"abc".to_vec())));
        assert_eq!(read(b"SSH-2.0"), None);
        assert_eq!(join_chunks(b"ffffffffffffffff\r\nx"), None);
    }

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(harmless("a\x1b[31mb\r\n\u{202e}c"), "a\\u{1b}[31mb\\u{d}\\u{a}\\u{202e}c");
        assert_eq!(encoded("a/b c\u{fc}"), "a%2Fb%20c%C3%BC");
    }
}

//! Where requests are forwarded to.

use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use super::super::fault::{Collector, shown};
use super::super::shape::Shape;
use super::super::suggestion::did_you_mean;
use super::super::table::Value;
use super::read_text;

/// A server that requests are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Backend {
    /// How it is spoken to.
    pub(crate) scheme: Scheme,
    /// A name or an address; an IPv6 address without its brackets.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
}

/// How a backend is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    /// HTTP/1.1 in the clear.
    Http,
    /// HTTP/2 or HTTP/1.1, whichever the backend prefers, over TLS.
    Https,
    /// HTTP/2 in the clear, known to be spoken.
    H2c,
}

impl Backend {
    /// Reads `http://host:port`. The error is the message for a person.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let no_backend = |why: &str| format!("{} is no backend: {why}, as in \"http://127.0.0.1:8080\"", shown(text));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| no_backend("write its scheme"))?;
        let (scheme, port_default) = match scheme {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            "h2c" => (Scheme::H2c, 80),
            other => {
                let hint = did_you_mean(other, ["http", "https", "h2c"]);
                return Err(format!("unknown scheme {}, expected http, https or h2c{hint}", shown(other)));
            }
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(no_backend("a path cannot be part of it, requests keep their own; write host and port only"));
        }
        if authority.contains('@') {
            return Err(no_backend("a user cannot be part of it; write host and port only"));
        }
        let (host, port) =
            split_port(authority).ok_or_else(|| no_backend("write a host, and a port from 1 to 65535"))?;
        Ok(Self { scheme, host: host.to_ascii_lowercase(), port: port.unwrap_or(port_default) })
    }
}

/// Splits `host:port`, `[v6]:port` or a host alone.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => {
            let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
            let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            (!host.is_empty() && host.bytes().all(named)).then_some((host, port))?
        }
    };
    let port =
        port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0)).map_or(Some(None), |port| port.map(Some))?;
    Some((host, port))
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::H2c => "h2c",
        };
        match self.host.contains(':') {
            true => write!(formatter, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(formatter, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Value for Backend {
    fn shape() -> Shape {
        Shape::Text { what: "a URL", example: "http://127.0.0.1:8080" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        read_text(value, faults, &Self::shape(), Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_reads_back_in_full() {
        let check = |text: &str, full: &str| assert_eq!(Backend::parse(text).unwrap().to_string(), full);
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080");
        check("http://Site.example/", "http://site.example:80");
        check("https://[::1]", "https://[::1]:443");
        check("h2c://[2001:db8::1]:50051", "h2c://[2001:db8::1]:50051");
    }

    #[test]
    fn what_is_no_backend_says_why() {
        let check = |text: &str, words: &str| {
            let message = Backend::parse(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("127.0.0.1:8080", "write its scheme");
        check("htp://a", "did you mean `http`?");
        check("http://a/b", "a path cannot be part of it");
        check("http://u:p@a", "a user cannot be part of it");
        check("http://", "a host");
        check("http://a:0", "a port");
        check("http://a:99999", "a port");
        check("http://[::1", "a host");
        check("http://[::1]x", "a host");
        check("http://a b", "a host");
    }
}

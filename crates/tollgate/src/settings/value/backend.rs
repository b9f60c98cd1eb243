//! URLs of backends, in `gate.backend`, `site.backend` and the option `--backend`.

use std::fmt;

use super::super::error::shown;
use super::super::suggestion::did_you_mean;
use super::text_value;

/// A backend's address: `http://host:port`, `https://host:port`, or `h2c://` and `h2://` for HTTP/2 without and with
/// TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BackendUrl {
    /// Host name or address, without brackets.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// Whether connections use TLS.
    pub(crate) tls: bool,
    /// The version of HTTP.
    pub(crate) protocol: BackendProtocol,
}

/// The version of HTTP that a backend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BackendProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// The schemes, whether each uses TLS, and its protocol.
const SCHEMES: [(&str, bool, BackendProtocol); 4] = [
    ("http", false, BackendProtocol::Http1),
    ("https", true, BackendProtocol::Http1),
    ("h2c", false, BackendProtocol::Http2),
    ("h2", true, BackendProtocol::Http2),
];

impl BackendUrl {
    /// Parses `http://host:port`. The error is a message for the operator.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let no_backend =
            |why: &str| format!("{} is not a backend: {why}, as in \"http://127.0.0.1:8080\"", shown(text));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| no_backend("write its scheme"))?;
        let Some((_, tls, protocol)) = SCHEMES.into_iter().find(|(name, ..)| *name == scheme) else {
            let hint = did_you_mean(scheme, SCHEMES.map(|(name, ..)| name));
            return Err(format!("unknown scheme {}, expected http, https, h2c or h2{hint}", shown(scheme)));
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
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { host: host.to_ascii_lowercase(), port, tls, protocol })
    }

    /// Host and port as in a `Host` field.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Splits `host:port`, `[IPv6 address]:port` or a host alone into host and port. None if either is invalid.
pub(in crate::settings) fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
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

impl fmt::Display for BackendUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |(_, tls, protocol): &&(&str, bool, BackendProtocol)| (*tls, *protocol) == (self.tls, self.protocol);
        let scheme = SCHEMES.iter().find(same).map_or("", |(name, ..)| name);
        write!(formatter, "{scheme}://{}", self.authority())
    }
}

text_value!(BackendUrl, "a URL", "http://127.0.0.1:8080", Self::parse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_displayed_with_scheme_and_port() {
        let check = |text: &str, full: &str| assert_eq!(BackendUrl::parse(text).unwrap().to_string(), full);
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080");
        check("http://Site.example/", "http://site.example:80");
        check("https://[::1]", "https://[::1]:443");
        check("h2://site.example", "h2://site.example:443");
        check("h2c://[2001:db8::1]:50051", "h2c://[2001:db8::1]:50051");
    }

    #[test]
    fn the_message_for_an_invalid_backend_contains_the_reason() {
        let check = |text: &str, words: &str| {
            let message = BackendUrl::parse(text).unwrap_err();
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

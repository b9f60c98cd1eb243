//! Listening addresses, such as `127.0.0.1:8888`, in settings and options of the command line.

use std::net::SocketAddr;

use super::super::error::shown;
use super::text_value;

/// An address and port to listen on, parsed to a [`SocketAddr`].
pub(crate) enum ListenAddress {}

impl ListenAddress {
    /// Parses an address and port. The error is a message for the operator, with a complete address as the correction.
    pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
        text.parse().map_err(|_| {
            let instead = match text.rsplit_once(':') {
                Some(("localhost", port)) => format!("127.0.0.1:{port}"),
                Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
                None if text.parse::<u16>().is_ok() => format!("127.0.0.1:{text}"),
                None if text.parse::<std::net::Ipv4Addr>().is_ok() => format!("{text}:8888"),
                _ => "127.0.0.1:8888".to_string(),
            };
            let instead = if instead.parse::<SocketAddr>().is_ok() { instead } else { "127.0.0.1:8888".to_string() };
            format!("{} is not an address and port: write one such as \"{instead}\"", shown(text))
        })
    }
}

text_value!(ListenAddress => SocketAddr, "an address and port", "127.0.0.1:8888", Self::parse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_for_an_incomplete_address_contains_a_complete_one() {
        assert!(ListenAddress::parse("[::1]:80").is_ok());
        let check = |text: &str, instead: &str| {
            let message = ListenAddress::parse(text).unwrap_err();
            assert!(message.contains(instead), "{text}: {message}");
        };
        check("localhost:80", "\"127.0.0.1:80\"");
        check(":80", "\"0.0.0.0:80\"");
        check("80", "\"127.0.0.1:80\"");
        check("10.0.0.1", "\"10.0.0.1:8888\"");
        check("localhost:99999", "\"127.0.0.1:8888\"");
        check("", "\"127.0.0.1:8888\"");
    }
}

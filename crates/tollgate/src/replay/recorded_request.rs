//! A recorded request in the form that rules use.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv6Addr};

#[cfg(test)]
use tollgate_core::network::Network;
use tollgate_core::network::NetworkSet;
use tollgate_core::path::NormalPath;
use tollgate_core::request::Request;
use tollgate_wire::forwarded;
use tollgate_wire::log::{self, Client};

use crate::settings::ForwardedHeader;

/// A recorded request in the form that rules use, in which every client has an address.
///
/// Some logs have names instead of addresses (Apache with `HostnameLookups`, traces of devices). Rules by address
/// would not apply to them. Therefore each name is mapped to a private address that no other name has. The output
/// shows the name.
///
/// A log that is written behind a proxy has the proxy's address in every line. If the configuration trusts the proxy,
/// the client is the forwarded address, as in a gate.
#[derive(Clone, Copy)]
pub(super) struct RecordedRequest<'a> {
    /// The line itself.
    pub(super) line: &'a log::Request<'a>,
    /// The address of the client, or the address that stands in for its name.
    client: IpAddr,
    /// Whether the log has a name instead of an address.
    is_named: bool,
    /// Whether its account is flagged.
    pub(super) is_flagged: bool,
}

impl<'a> RecordedRequest<'a> {
    /// Creates the request of a line. If its client is one of the `trusted` proxies, the forwarded header names the
    /// client.
    #[inline]
    pub(super) fn new(line: &'a log::Request<'a>, trusted: &Trusted) -> Self {
        let (client, is_named) = match line.client {
            Client::Address(address) => (address, false),
            Client::Name(name) => (stand_in(name), true),
        };
        let is_proxy = !is_named && trusted.proxies.contains(client);
        let client = if is_proxy { behind(client, line, trusted) } else { client };
        Self { line, client, is_named, is_flagged: false }
    }

    /// The client's name, if it has no address.
    #[inline]
    pub(super) const fn client_name(&self) -> Option<&'a [u8]> {
        if self.is_named { Some(self.line.client_text) } else { None }
    }
}

/// The client behind a trusted proxy.
fn behind(proxy: IpAddr, line: &log::Request<'_>, trusted: &Trusted) -> IpAddr {
    let trusts = |address| trusted.proxies.contains(address);
    match trusted.header {
        ForwardedHeader::XForwardedFor => {
            forwarded::client_by_x_forwarded_for(proxy, line.headers.all(b"x-forwarded-for"), trusts)
        }
        ForwardedHeader::Forwarded => forwarded::client_by_forwarded(proxy, line.headers.all(b"forwarded"), trusts),
    }
}

/// The proxies that are trusted to name their clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Trusted {
    pub(super) proxies: NetworkSet,
    /// The header in which they name clients.
    pub(super) header: ForwardedHeader,
}

/// An address in fd00::/8 for a client that has only a name. Different names differ in the first 48 bits, because
/// `ip/16`, the widest of the usual classes, uses 48 bits of an IPv6 address.
fn stand_in(name: &[u8]) -> IpAddr {
    let mut hasher = foldhash::quality::FixedState::default().build_hasher();
    hasher.write(name);
    let bits = u128::from(hasher.finish());
    IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | bits << 56))
}

impl Request for RecordedRequest<'_> {
    #[inline]
    fn client(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    delegate! { line:
        method() -> &[u8];
        target() -> &[u8];
        host() -> Option<&[u8]>;
        normal_path() -> Option<&NormalPath>;
        header(name: &str) -> Option<&[u8]>;
        attribute(name: &str) -> Option<&[u8]>;
    }

    fn is_flagged(&self) -> bool {
        self.is_flagged
    }
}

/// Parses a line of a trace for a test.
#[cfg(test)]
pub(super) fn with_recorded(line: &str, look: impl FnOnce(RecordedRequest<'_>)) {
    let mut parser = log::Parser::new();
    match parser.parse(log::Format::Trace, line.as_bytes()) {
        Ok(log::Line::Request(request)) => {
            let proxies = [Network::of(IpAddr::from([127, 0, 0, 0]), 8)].into_iter().collect();
            look(RecordedRequest::new(&request, &Trusted { proxies, ..Trusted::default() }))
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_name_their_clients() {
        for (client, forwarded, expect) in [
            ("127.0.0.1", r#""x-forwarded-for": "198.51.100.3, 203.0.113.7""#, "203.0.113.7"),
            ("127.0.0.1", r#""X-Forwarded-For": ["198.51.100.3", "203.0.113.7, 127.0.0.2"]"#, "203.0.113.7"),
            ("127.0.0.1", r#""forwarded": "for=203.0.113.7""#, "127.0.0.1"),
            ("127.0.0.1", r#""x": "y""#, "127.0.0.1"),
            ("192.0.2.1", r#""x-forwarded-for": "203.0.113.7""#, "192.0.2.1"),
        ] {
            let line = format!(r#"{{"at_ms": 1, "client": "{client}", "headers": {{{forwarded}}}}}"#);
            with_recorded(&line, |request| assert_eq!(request.client(), Some(expect.parse().unwrap()), "{line}"));
        }
    }

    #[test]
    fn a_name_has_an_address_and_a_network_of_its_own() {
        let network = |name: &str| Network::of(stand_in(name.as_bytes()), 48);
        assert_eq!(network("a.example.org"), network("a.example.org"));
        assert_ne!(network("a.example.org"), network("b.example.org"));
        assert!(network("a").address().to_string().starts_with("fd"));
    }
}

//! A recorded request as rules see it.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use tollgate_core::request::Request;
use tollgate_wire::log::{self, Client};

/// A recorded request as rules see it: every client has an address.
///
/// Where a log has names instead of addresses (Apache with `HostnameLookups`, traces of devices), rules by address would not apply at all,
/// and the whole replay would say nothing. So a name stands for a private address of its own, one that no two names share; what people are
/// shown is the name.
pub(super) struct Recorded<'a> {
    line: &'a log::Request<'a>,
    client: IpAddr,
}

impl<'a> Recorded<'a> {
    pub(super) fn new(line: &'a log::Request<'a>) -> Self {
        let client = match line.client {
            Client::Address(address) => address,
            Client::Name(name) => stand_in(name),
        };
        Self { line, client }
    }

    /// The line itself.
    pub(super) const fn line(&self) -> &'a log::Request<'a> {
        self.line
    }

    /// The client's name, if it has no address.
    #[inline]
    pub(super) const fn client_name(&self) -> Option<&'a [u8]> {
        match self.line.client {
            Client::Address(_) => None,
            Client::Name(name) => Some(name),
        }
    }
}

/// An address in fd00::/8, of which the first 48 bits alone tell names apart: rules look at no less.
fn stand_in(name: &[u8]) -> IpAddr {
    let mut hasher = foldhash::quality::FixedState::default().build_hasher();
    hasher.write(name);
    let bits = u128::from(hasher.finish());
    IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | bits << 56))
}

impl Request for Recorded<'_> {
    #[inline]
    fn client(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    fn method(&self) -> &[u8] {
        self.line.method()
    }

    fn target(&self) -> &[u8] {
        self.line.target()
    }

    fn host(&self) -> Option<&[u8]> {
        self.line.host()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.line.header(name)
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.line.attribute(name)
    }
}

/// Reads a line of a trace and looks at it.
#[cfg(test)]
pub(super) fn with_recorded(line: &str, look: impl FnOnce(Recorded<'_>)) {
    let mut parser = log::Parser::new();
    match parser.parse(log::Format::Trace, line.as_bytes()) {
        Ok(log::Line::Request(request)) => look(Recorded::new(&request)),
        other => panic!("{line}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::network::Network;

    #[test]
    fn a_name_has_an_address_and_a_network_of_its_own() {
        let network = |name: &str| Network::of(stand_in(name.as_bytes()), 48);
        assert_eq!(network("a.example.org"), network("a.example.org"));
        assert_ne!(network("a.example.org"), network("b.example.org"));
        assert!(network("a").address().to_string().starts_with("fd"));
    }
}

//! A key as gates and masters call it: text that every gate writes alike, and of which every gate finds its own record again.
//!
//! Smockron calls a client by its address, or by whatever the service says. A key of one part is called just so, so that original peers
//! keep the same books. Parts of several are joined by a bar, and [`Class::write_identified`] takes them apart again.

use core::fmt::Write;

use arrayvec::ArrayVec;
use tollgate_core::class::{Class, KeySink, PART_BAR, PART_ESCAPE};
use tollgate_core::network::Network;
use tollgate_core::request::Request;
use tollgate_wire::smockron::IDENTIFIER_BYTES_MAX;

/// The name of a key on the wire. It has a place of fixed size, since it is made for each request.
#[derive(Clone, Debug, Default)]
pub struct Identifier(ArrayVec<u8, IDENTIFIER_BYTES_MAX>);

impl Identifier {
    /// The name of `request`'s key in `class`; none if it has no such key, or one that is empty or too long to be told.
    pub fn of(class: &Class, request: &impl Request) -> Option<Self> {
        let mut sink =
            Sink { name: Self::default(), is_joined: class.is_joined(), is_between: false, is_too_long: false };
        let present = class.write_key(request, &mut sink);
        (present && !sink.is_too_long && !sink.name.0.is_empty()).then_some(sink.name)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

struct Sink {
    name: Identifier,
    is_joined: bool,
    is_between: bool,
    is_too_long: bool,
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) {
        self.is_too_long |= self.name.0.try_extend_from_slice(bytes).is_err();
    }

    fn begin(&mut self) {
        if core::mem::take(&mut self.is_between) {
            self.put(&[PART_BAR]);
        }
    }
}

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

impl KeySink for Sink {
    fn network(&mut self, network: Network) {
        self.begin();
        let address = network.address();
        let is_whole = network.prefix() == if address.is_ipv4() { 32 } else { 128 };
        // Smockron's gatekeepers call a client by its bare address.
        let written = if is_whole { write!(self, "{address}") } else { write!(self, "{network}") };
        debug_assert!(written.is_ok(), "memory takes what is written");
    }

    fn write(&mut self, bytes: &[u8]) {
        self.begin();
        if !self.is_joined {
            return self.put(bytes);
        }
        for &byte in bytes {
            if matches!(byte, PART_BAR | PART_ESCAPE) {
                self.put(&[PART_ESCAPE]);
            }
            self.put(&[byte]);
        }
    }

    fn end_part(&mut self) {
        self.begin();
        self.is_between = self.is_joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{KeyHasher, Seed};
    use core::net::IpAddr;
    use proptest::prelude::*;

    struct Asked<'a> {
        client: IpAddr,
        agent: &'a [u8],
        target: &'a [u8],
    }

    impl Request for Asked<'_> {
        fn client(&self) -> Option<IpAddr> {
            Some(self.client)
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            self.target
        }
        fn host(&self) -> Option<&[u8]> {
            None
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "user-agent").then_some(self.agent)
        }
    }

    fn name(class: &str, client: &str, agent: &[u8]) -> Option<Vec<u8>> {
        let request = Asked { client: client.parse().unwrap(), agent, target: b"/" };
        Identifier::of(&Class::parse(class).unwrap(), &request).map(|name| name.as_bytes().to_vec())
    }

    #[test]
    fn a_client_is_called_as_smockron_calls_it() {
        assert_eq!(name("ip/32", "203.0.113.7", b"").unwrap(), b"203.0.113.7");
        assert_eq!(name("ip/24", "203.0.113.7", b"").unwrap(), b"203.0.113.0/24");
        assert_eq!(name("ip/32", "2001:db8::1", b"").unwrap(), b"2001:db8::/64");
        assert_eq!(name("user-agent", "::1", b"a|b\\c").unwrap(), b"a|b\\c");
        assert_eq!(name("ip/32+user-agent", "10.0.0.1", b"a|b").unwrap(), b"10.0.0.1|a\\|b");
    }

    #[test]
    fn what_cannot_be_told_is_not_told_cut() {
        assert_eq!(name("user-agent", "::1", &[b'x'; IDENTIFIER_BYTES_MAX]).unwrap().len(), IDENTIFIER_BYTES_MAX);
        assert_eq!(name("user-agent", "::1", &[b'x'; IDENTIFIER_BYTES_MAX + 1]), None);
        assert_eq!(name("user-agent", "::1", b""), None);
    }

    #[test]
    fn what_stands_for_no_key_is_refused() {
        let found = |class: &str, identifier: &[u8]| {
            Class::parse(class).unwrap().write_identified(identifier, &mut KeyHasher::new(Seed::fixed(7)).pieces())
        };
        assert!(found("ip/24", b"203.0.113.9"));
        assert!(!found("ip/24", b"203.0.0.0/16") && !found("ip/24", b"home") && !found("ip/24", b"\xff"));
        assert!(found("method+user-agent", b"GET|x\\|y"));
        assert!(!found("method+user-agent", b"GET") && !found("method+user-agent", b"GET|x|y"));
    }

    proptest! {
        #[test]
        fn the_record_of_an_identifier_is_that_of_the_request(
            client in any::<IpAddr>(),
            agent in prop::collection::vec(prop_oneof![Just(b'|'), Just(b'\\'), any::<u8>()], 0..40),
            target in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'7'), any::<u8>()], 0..40),
            class in prop::sample::select(vec![
                "ip/32", "ip/24", "ip/16", "ip/20,52", "user-agent", "path", "ip/24+user-agent", "method+path", "user-agent+path+ip/32",
            ]),
        ) {
            let class = Class::parse(class).unwrap();
            let request = Asked { client, agent: &agent, target: &target };
            let hasher = KeyHasher::new(Seed::fixed(7));
            let mut direct = hasher.pieces();
            prop_assert!(class.write_key(&request, &mut direct));
            if let Some(name) = Identifier::of(&class, &request) {
                let mut through = hasher.pieces();
                prop_assert!(class.write_identified(name.as_bytes(), &mut through));
                prop_assert_eq!(through.finish(), direct.finish());
            }
        }
    }
}

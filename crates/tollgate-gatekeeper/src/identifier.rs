//! The identifiers of keys in messages between gates and masters: text from which every gate finds its own record of
//! the key.
//!
//! Smockron, the earlier rate limiter whose messages these are, identifies a client by its address or by a text from
//! the service. A key with one part is written in the same way, so that it has the same account as at gates and
//! masters of Smockron. Several parts are joined by `|`, and [`Class::write_identified`] splits them.

use std::io::{self, Write};

use arrayvec::ArrayVec;
use tollgate_core::class::{Class, KeySink, PART_ESCAPE, PART_SEPARATOR};
use tollgate_core::network::Network;
use tollgate_core::request::Request;
use tollgate_wire::smockron::IDENTIFIER_BYTES_MAX;

use crate::truncation::{DIGEST_BYTES, Tail};

/// A buffer for every identifier.
pub type Name = ArrayVec<u8, IDENTIFIER_BYTES_MAX>;

/// The longest identifier that is stored inline.
const SHORT_BYTES_MAX: usize = 22;

/// The identifier of a key. One is created per request and sent to another thread, so it is small: an address
/// is formatted only by [`write`](Self::write), and a long identifier is in a separate allocation.
#[derive(Debug)]
pub enum Identifier {
    /// A single address or network.
    Network(Network),
    /// A short identifier: its length and bytes.
    Short(u8, [u8; SHORT_BYTES_MAX]),
    /// A long identifier.
    Long(Box<Name>),
}

impl Identifier {
    /// The identifier of `request`'s key in `class`; `None` if it has no such key or an empty one. An
    /// identifier that would fill [`Name`] is truncated ([`crate::truncation`]). `spare` supplies a buffer for a
    /// long one.
    pub fn of(class: &Class, request: &impl Request, spare: impl FnOnce() -> Box<Name>) -> Option<Self> {
        let name = Self::Short(0, [0; SHORT_BYTES_MAX]);
        let mut sink = Sink { name, spare: Some(spare), is_joined: class.is_joined(), is_between: false, tail: None };
        let present = class.write_key(request, &mut sink);
        if let (Self::Long(name), Some(tail)) = (&mut sink.name, &sink.tail) {
            name[IDENTIFIER_BYTES_MAX - DIGEST_BYTES..].copy_from_slice(&tail.digest());
        }
        let is_empty = matches!(sink.name, Self::Short(0, _));
        (present && !is_empty).then_some(sink.name)
    }

    /// The bytes of the identifier; `room` is a buffer for them.
    pub fn write<'a>(&'a self, room: &'a mut Name) -> &'a [u8] {
        match self {
            Self::Network(network) => {
                room.clear();
                let written = write_network(*network, room);
                debug_assert!(written.is_ok(), "there is room for every network");
                room
            }
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(name) => name,
        }
    }
}

/// Writes a network, or a single address without its prefix length, as Smockron does.
fn write_network(network: Network, room: &mut Name) -> io::Result<()> {
    let address = network.address();
    let is_whole = network.prefix() == if address.is_ipv4() { 32 } else { 128 };
    if is_whole { write!(room, "{address}") } else { write!(room, "{network}") }
}

/// Writes the parts of a key into an [`Identifier`].
struct Sink<F> {
    name: Identifier,
    /// Supplies a buffer for a long identifier, until it is used.
    spare: Option<F>,
    /// Whether the key can have several parts, which are joined by `|`.
    is_joined: bool,
    /// Whether a part has ended, so that the next one begins with `|`.
    is_between: bool,
    /// The truncated part of the identifier.
    tail: Option<Tail>,
}

impl<F: FnOnce() -> Box<Name>> Sink<F> {
    fn put(&mut self, bytes: &[u8]) {
        if let Identifier::Short(length, short) = &mut self.name {
            let begin = usize::from(*length);
            if let Some(room) = short.get_mut(begin..begin + bytes.len()) {
                room.copy_from_slice(bytes);
                *length += bytes.len() as u8;
                return;
            }
        }
        self.put_long(bytes);
    }

    /// Continues in a buffer for long identifiers.
    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if let (Identifier::Short(length, begun), Some(spare)) = (&self.name, self.spare.take()) {
            let mut name = spare();
            name.clear();
            name.extend(begun[..usize::from(*length)].iter().copied());
            self.name = Identifier::Long(name);
        }
        let Identifier::Long(name) = &mut self.name else { return };
        let (fits, rest) = bytes.split_at(bytes.len().min(name.remaining_capacity()));
        name.extend(fits.iter().copied());
        if name.is_full() {
            let kept = IDENTIFIER_BYTES_MAX - DIGEST_BYTES;
            self.tail.get_or_insert_with(|| Tail::new(&name[kept..])).write(rest);
        }
    }

    /// Writes the `|` before a part, if another part has ended.
    fn begin(&mut self) {
        if core::mem::take(&mut self.is_between) {
            self.put(&[PART_SEPARATOR]);
        }
    }
}

impl<F: FnOnce() -> Box<Name>> KeySink for Sink<F> {
    fn network(&mut self, network: Network) {
        if !self.is_joined {
            self.name = Identifier::Network(network);
            return;
        }
        self.begin();
        let mut room = Name::new();
        if write_network(network, &mut room).is_ok() {
            self.put(&room);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.begin();
        if !self.is_joined {
            return self.put(bytes);
        }
        for &byte in bytes {
            if matches!(byte, PART_SEPARATOR | PART_ESCAPE) {
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
    use crate::truncation::is_cut;
    use core::net::IpAddr;
    use proptest::prelude::*;
    use tollgate_core::path::NormalPath;

    struct TestRequest<'a> {
        client: IpAddr,
        agent: &'a [u8],
        target: &'a [u8],
        normal: NormalPath,
    }

    impl Request for TestRequest<'_> {
        fn client(&self) -> Option<IpAddr> {
            Some(self.client)
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            self.target
        }
        fn normal_path(&self) -> Option<&NormalPath> {
            self.normal.differing()
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "user-agent").then_some(self.agent)
        }
    }

    fn name(class: &str, client: &str, agent: &[u8]) -> Option<Vec<u8>> {
        let request =
            TestRequest { client: client.parse().unwrap(), agent, target: b"/", normal: NormalPath::default() };
        Identifier::of(&Class::parse(class).unwrap(), &request, Box::default)
            .map(|name| name.write(&mut Name::new()).to_vec())
    }

    #[test]
    fn a_client_has_smockrons_identifier() {
        assert_eq!(name("ip/32", "203.0.113.7", b"").unwrap(), b"203.0.113.7");
        assert_eq!(name("ip/24", "203.0.113.7", b"").unwrap(), b"203.0.113.0/24");
        assert_eq!(name("ip/32", "2001:db8::1", b"").unwrap(), b"2001:db8::/64");
        // Original gatekeepers have whole addresses of IPv6 too.
        assert_eq!(name("ip/32,128", "2001:db8::1", b"").unwrap(), b"2001:db8::1");
        assert_eq!(name("ip/32,128", "203.0.113.7", b"").unwrap(), b"203.0.113.7");
        assert_eq!(name("user-agent", "::1", b"a|b\\c").unwrap(), b"a|b\\c");
        assert_eq!(name("ip/32+user-agent", "10.0.0.1", b"a|b").unwrap(), b"10.0.0.1|a\\|b");
    }

    #[test]
    fn an_identifier_is_the_same_in_any_representation() {
        for length in 1..IDENTIFIER_BYTES_MAX {
            let agent: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            assert_eq!(name("user-agent", "::1", &agent).unwrap(), agent);
        }
        // The previous content of the buffer is not part of it.
        let request = TestRequest {
            client: [10, 0, 0, 1].into(),
            agent: &[b'y'; 30],
            target: b"/",
            normal: NormalPath::default(),
        };
        let used = || Box::new(Name::from([b'x'; IDENTIFIER_BYTES_MAX]));
        let name = Identifier::of(&Class::parse("user-agent").unwrap(), &request, used).unwrap();
        assert_eq!(name.write(&mut Name::new()), [b'y'; 30]);
    }

    #[test]
    fn an_identifier_is_small() {
        assert!(size_of::<Identifier>() <= 24, "{}", size_of::<Identifier>());
    }

    #[test]
    fn long_identifiers_are_truncated_and_stay_distinct() {
        assert_eq!(name("user-agent", "::1", b""), None);
        let long: Vec<_> = [256, 257, 300, 5_000].map(|length| name("user-agent", "::1", &vec![b'x'; length])).into();
        for (index, name) in long.iter().enumerate() {
            assert!(is_cut(name.as_ref().unwrap(), IDENTIFIER_BYTES_MAX));
            assert!(!long[..index].contains(name));
        }
        // In pieces and with escapes.
        let bars = name("ip/32+user-agent", "::1", &[b'|'; 300]).unwrap();
        assert!(is_cut(&bars, IDENTIFIER_BYTES_MAX) && bars.starts_with(b"::/64|\\|\\|"));
    }

    #[test]
    fn an_invalid_identifier_is_rejected() {
        let found = |class: &str, identifier: &[u8]| {
            Class::parse(class).unwrap().write_identified(identifier, &mut KeyHasher::new(Seed::fixed(7)).pieces())
        };
        assert!(found("ip/24", b"203.0.113.9"));
        assert!(found("ip/32,128", b"2001:db8::1") && !found("ip/32,128", b"2001:db8::/64"));
        assert!(!found("ip/24", b"203.0.0.0/16") && !found("ip/24", b"home") && !found("ip/24", b"\xff"));
        assert!(found("method+user-agent", b"GET|x\\|y"));
        assert!(!found("method+user-agent", b"GET") && !found("method+user-agent", b"GET|x|y"));
    }

    proptest! {
        #[test]
        fn an_identifier_finds_the_record_of_its_request(
            client in any::<IpAddr>(),
            agent in prop::collection::vec(prop_oneof![Just(b'|'), Just(b'\\'), any::<u8>()], 0..40),
            target in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'7'), any::<u8>()], 0..40),
            class in prop::sample::select(vec![
                "ip/32", "ip/24", "ip/16", "ip/20,52", "user-agent", "path", "ip/24+user-agent", "method+path", "user-agent+path+ip/32",
            ]),
        ) {
            let class = Class::parse(class).unwrap();
            let normal = NormalPath::of(target.split(|byte| *byte == b'?').next().unwrap());
            let request = TestRequest { client, agent: &agent, target: &target, normal };
            let hasher = KeyHasher::new(Seed::fixed(7));
            let mut direct = hasher.pieces();
            prop_assert!(class.write_key(&request, &mut direct));
            if let Some(name) = Identifier::of(&class, &request, Box::default) {
                let mut through = hasher.pieces();
                prop_assert!(class.write_identified(name.write(&mut Name::new()), &mut through));
                prop_assert_eq!(through.finish(), direct.finish());
            }
        }
    }
}

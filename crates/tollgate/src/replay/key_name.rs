//! The display name of a key.
//!
//! Formatting `203.0.113.0/24` for every request would cost more than the decision. Keys are therefore identified by
//! their hashes ([`key_hash`]). Only keys in a list have a name: the original bytes, cut to a fixed length and
//! formatted for the output.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use foldhash::fast::{FixedState, FoldHasher};
use tollgate_core::class::{Class, KeySink};
use tollgate_core::network::Network;

use super::recorded_request::RecordedRequest;
use super::terminal_text::shown;

/// The maximum number of bytes of a name.
const BYTES_MAX: usize = 110;
/// A fixed seed, so that replays of the same lines give the same result.
const SEED: FixedState = FixedState::with_seed(0x7011);

/// The markers before each part of a name.
const TEXT: u8 = 1;
const CUT_TEXT: u8 = 2;
const NETWORK_V4: u8 = 4;
const NETWORK_V6: u8 = 6;

/// Hashes keys, part by part.
struct KeyHasher<'a> {
    hasher: FoldHasher<'static>,
    client: Option<&'a [u8]>,
}

/// The hash of the key of `request` in `class`, or `None` if it has no key.
#[inline]
pub(super) fn key_hash(class: &Class, request: &RecordedRequest<'_>) -> Option<u64> {
    let mut sink = KeyHasher { hasher: SEED.build_hasher(), client: request.client_name() };
    class.write_key(request, &mut sink).then(|| sink.hasher.finish())
}

impl KeySink for KeyHasher<'_> {
    #[inline]
    fn network(&mut self, network: Network) {
        match (self.client, network.address()) {
            (Some(name), _) => self.write(name),
            (None, IpAddr::V4(address)) => self.hasher.write_u32(address.to_bits()),
            (None, IpAddr::V6(address)) => self.hasher.write_u128(address.to_bits()),
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }

    #[inline]
    fn end_part(&mut self) {
        self.hasher.write_u8(0);
    }
}

/// The name of one key.
#[derive(Clone, Copy)]
pub(super) struct KeyName {
    length: u8,
    bytes: [u8; BYTES_MAX],
}

impl Default for KeyName {
    fn default() -> Self {
        Self { length: 0, bytes: [0; BYTES_MAX] }
    }
}

impl KeyName {
    /// The name of the key of `request` in `class`.
    pub(super) fn of(class: &Class, request: &RecordedRequest<'_>) -> Self {
        let mut name = Self::default();
        name.rewrite(class, request);
        name
    }

    /// Replaces this name by that of the key of `request` in `class`.
    pub(super) fn rewrite(&mut self, class: &Class, request: &RecordedRequest<'_>) {
        self.length = 0;
        let mut writer = KeyNameWriter { name: self, part: 0, client: request.client_name() };
        writer.begin_part();
        class.write_key(request, &mut writer);
        writer.finish();
    }

    /// A name from a text.
    #[cfg(test)]
    pub(super) fn of_text(bytes: &[u8]) -> Self {
        let mut name = Self::default();
        let mut writer = KeyNameWriter { name: &mut name, part: 0, client: None };
        writer.begin_part();
        writer.write(bytes);
        writer.end_part();
        writer.finish();
        name
    }

    /// The key as plain text, for counting.
    pub(super) fn to_text(self) -> Vec<u8> {
        let mut text = Vec::new();
        for (index, part) in self.parts().enumerate() {
            if index > 0 {
                text.extend_from_slice(b" ");
            }
            match part {
                Part::Text(bytes, _) => text.extend_from_slice(bytes),
                Part::Network(network) => text.extend_from_slice(network_text(network).as_bytes()),
            }
        }
        text
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let mut rest = &self.bytes[..usize::from(self.length)];
        std::iter::from_fn(move || {
            let (part, after) = Part::split(rest)?;
            rest = after;
            Some(part)
        })
    }
}

/// Escapes everything that could disturb a terminal.
impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            match part {
                Part::Text(b"", false) => f.write_str("(none)")?,
                Part::Text(bytes, cut) => write!(f, "{}{}", shown(bytes), if cut { "…" } else { "" })?,
                Part::Network(network) => f.write_str(&network_text(network))?,
            }
        }
        Ok(())
    }
}

/// A network in the usual notation: an address alone if the network has only one.
fn network_text(network: Network) -> String {
    match (network.address(), network.prefix()) {
        (address @ IpAddr::V4(_), 32) | (address @ IpAddr::V6(_), 128) => address.to_string(),
        _ => network.to_string(),
    }
}

enum Part<'a> {
    Text(&'a [u8], bool),
    Network(Network),
}

impl<'a> Part<'a> {
    /// The first part of the bytes, and the rest.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            NETWORK_V4 => {
                let (octets, rest) = rest.split_first_chunk::<4>()?;
                let (prefix, rest) = rest.split_first()?;
                Some((Self::Network(Network::of(IpAddr::from(*octets), *prefix)), rest))
            }
            NETWORK_V6 => {
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                let (prefix, rest) = rest.split_first()?;
                Some((Self::Network(Network::of(IpAddr::from(*octets), *prefix)), rest))
            }
            kind => {
                let (length, rest) = rest.split_first()?;
                let (text, rest) = rest.split_at_checked(usize::from(*length))?;
                Some((Self::Text(text, kind == CUT_TEXT), rest))
            }
        }
    }
}

/// Writes a name, part by part.
struct KeyNameWriter<'a> {
    name: &'a mut KeyName,
    /// The start of the current part: its kind, and for text its length.
    part: usize,
    /// The client's name, if it has no address.
    client: Option<&'a [u8]>,
}

impl KeyNameWriter<'_> {
    /// Starts a part, as text unless it becomes a network. Without room, the rest is left out.
    #[inline]
    fn begin_part(&mut self) {
        self.part = usize::from(self.name.length);
        if self.part + 2 <= BYTES_MAX {
            self.name.bytes[self.part] = TEXT;
            self.name.bytes[self.part + 1] = 0;
            self.name.length += 2;
        }
    }

    /// Removes the current part, which is empty.
    fn finish(self) {
        self.name.length = self.part as u8;
    }

    fn put_network(&mut self, kind: u8, octets: &[u8], prefix: u8) {
        let end = self.part + 2 + octets.len();
        if end > BYTES_MAX {
            return;
        }
        self.name.bytes[self.part] = kind;
        self.name.bytes[self.part + 1..end - 1].copy_from_slice(octets);
        self.name.bytes[end - 1] = prefix;
        self.name.length = end as u8;
    }
}

impl KeySink for KeyNameWriter<'_> {
    fn network(&mut self, network: Network) {
        match (self.client, network.address()) {
            (Some(name), _) => self.write(name),
            (None, IpAddr::V4(address)) => self.put_network(NETWORK_V4, &address.octets(), network.prefix()),
            (None, IpAddr::V6(address)) => self.put_network(NETWORK_V6, &address.octets(), network.prefix()),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let start = usize::from(self.name.length);
        if start < self.part + 2 {
            return;
        }
        let room = (BYTES_MAX - start).min(bytes.len());
        self.name.bytes[start..start + room].copy_from_slice(&bytes[..room]);
        self.name.bytes[self.part + 1] += room as u8;
        self.name.length += room as u8;
        if room < bytes.len() {
            self.name.bytes[self.part] = CUT_TEXT;
        }
    }

    fn end_part(&mut self) {
        self.begin_part();
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded_request::with_recorded;
    use super::*;

    fn check(class: &str, line: &str, expect: Option<&str>) {
        with_recorded(line, |request| {
            let class = Class::parse(class).unwrap();
            let name = key_hash(&class, &request).map(|_| KeyName::of(&class, &request).to_string());
            assert_eq!(name.as_deref(), expect, "{class} of {line}");
        });
    }

    #[test]
    fn a_name_reads_as_its_key() {
        let line = r#"{"at_ms": 1, "client": "203.0.113.7", "method": "GET", "path": "/user/7?x", "headers": {"user-agent": "curl"}}"#;
        check("ip/32", line, Some("203.0.113.7"));
        check("ip/24", line, Some("203.0.113.0/24"));
        check("user-agent", line, Some("curl"));
        check("path", line, Some("/user/:id"));
        check("method+path", line, Some("GET /user/:id"));
        check("ip/16+method+user-agent", line, Some("203.0.0.0/16 GET curl"));
        check("header:x-api-key", line, None);
        check("ip/32", r#"{"at_ms": 1, "client": "2001:db8::7"}"#, Some("2001:db8::/64"));
        check("ip/24", r#"{"at_ms": 1, "client": "crawler.example.org"}"#, Some("crawler.example.org"));
        check("user-agent", r#"{"at_ms": 1, "client": "x"}"#, Some("(none)"));
    }

    #[test]
    fn control_characters_are_escaped() {
        let line = r#"{"at_ms": 1, "client": "x", "headers": {"user-agent": "\u001b[31mred\r\nX\u0000"}}"#;
        check("user-agent", line, Some(r"\x1b[31mred\r\nX\0"));
    }

    #[test]
    fn a_long_name_is_cut_for_display_and_whole_for_the_hash() {
        let line = |end: char| {
            format!(r#"{{"at_ms": 1, "client": "x", "path": "/{}{end}", "method": "GET"}}"#, "p".repeat(500))
        };
        let class = Class::parse("path+method").unwrap();
        let mut known = Vec::new();
        for end in ['a', 'a', 'b'] {
            with_recorded(&line(end), |request| {
                known.push((KeyName::of(&class, &request).to_string(), key_hash(&class, &request)));
            });
        }
        assert_eq!(known[0], known[1]);
        assert_eq!(known[0].0, known[2].0);
        assert!(known[0].0.ends_with('…'));
        assert_ne!(known[0].1, known[2].1);
        assert_eq!(KeyName::of_text(b"short").to_text(), b"short");
    }

    #[test]
    fn keys_that_differ_have_hashes_that_differ() {
        let class = Class::parse("ip/24+user-agent").unwrap();
        let mut hashes = std::collections::HashSet::new();
        for client in ["203.0.113.7", "203.0.114.7", "2001:db8::7", "a.example", "b.example"] {
            for agent in ["", "x", "y"] {
                let line = format!(r#"{{"at_ms": 1, "client": "{client}", "headers": {{"user-agent": "{agent}"}}}}"#);
                with_recorded(&line, |request| assert!(hashes.insert(key_hash(&class, &request)), "{line}"));
            }
        }
    }
}

//! The display name of a key, for the lists of a summary.
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

/// The maximum number of bytes of text in a name.
const TEXT_BYTES_MAX: usize = 108;
/// A fixed seed, so that replays of the same lines give the same result.
const SEED: FixedState = FixedState::with_seed(0x7011);

/// Hashes keys, part by part.
struct KeyHasher<'a> {
    hasher: FoldHasher<'static>,
    /// The client's name, if it has no address. It is hashed instead of the address that stands in for it.
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

/// The name of one key. Its memory is used again when another name replaces it.
#[derive(Clone, Default)]
pub(super) struct KeyName {
    parts: Vec<Part>,
    /// The text of all parts that are no networks.
    text: Vec<u8>,
}

/// A part of the key. A class such as `method+path` has several.
#[derive(Clone, Copy)]
enum Part {
    Network(Network),
    /// The text up to `end`, from the end of the text before it.
    Text {
        end: usize,
        is_cut: bool,
    },
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
        self.parts.clear();
        self.text.clear();
        class.write_key(request, &mut KeyNameWriter::new(self, request.client_name()));
    }

    /// A name from a text.
    #[cfg(test)]
    pub(super) fn of_text(bytes: &[u8]) -> Self {
        let mut name = Self::default();
        let mut writer = KeyNameWriter::new(&mut name, None);
        writer.write(bytes);
        writer.end_part();
        name
    }

    /// The key as plain text, without escapes, as the watch counts it.
    pub(super) fn to_text(&self) -> Vec<u8> {
        self.joined(|text, _| text.to_vec())
    }

    /// The parts, separated by spaces. `shown` gets the text of a part, and whether it is cut.
    fn joined(&self, shown: impl Fn(&[u8], bool) -> Vec<u8>) -> Vec<u8> {
        let mut start = 0;
        let parts = self.parts.iter().map(|part| match *part {
            Part::Network(network) => network_text(network).into_bytes(),
            Part::Text { end, is_cut } => shown(&self.text[std::mem::replace(&mut start, end)..end], is_cut),
        });
        parts.collect::<Vec<_>>().join(&b' ')
    }
}

/// The name for the terminal: everything that could disturb it is escaped.
impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.joined(|text, is_cut| match (text, is_cut) {
            (b"", false) => b"(none)".to_vec(),
            (text, is_cut) => (shown(text) + if is_cut { "…" } else { "" }).into_bytes(),
        });
        f.write_str(&String::from_utf8_lossy(&name))
    }
}

/// A network in the usual notation: an address alone if the network has only one.
fn network_text(network: Network) -> String {
    match (network.address(), network.prefix()) {
        (address @ IpAddr::V4(_), 32) | (address @ IpAddr::V6(_), 128) => address.to_string(),
        _ => network.to_string(),
    }
}

/// Writes a name, part by part.
struct KeyNameWriter<'a> {
    name: &'a mut KeyName,
    /// The client's name, if it has no address.
    client: Option<&'a [u8]>,
    /// The current part, if it is a network.
    network: Option<Network>,
    /// Whether text of the current part was cut, because names have at most [`TEXT_BYTES_MAX`] bytes.
    is_cut: bool,
}

impl<'a> KeyNameWriter<'a> {
    fn new(name: &'a mut KeyName, client: Option<&'a [u8]>) -> Self {
        Self { name, client, network: None, is_cut: false }
    }
}

impl KeySink for KeyNameWriter<'_> {
    fn network(&mut self, network: Network) {
        match self.client {
            Some(name) => self.write(name),
            None => self.network = Some(network),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let text = &mut self.name.text;
        let room = bytes.len().min(TEXT_BYTES_MAX - text.len());
        text.extend_from_slice(&bytes[..room]);
        self.is_cut |= room < bytes.len();
    }

    fn end_part(&mut self) {
        let text = Part::Text { end: self.name.text.len(), is_cut: std::mem::take(&mut self.is_cut) };
        self.name.parts.push(self.network.take().map_or(text, Part::Network));
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

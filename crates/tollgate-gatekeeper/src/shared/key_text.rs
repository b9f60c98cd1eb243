//! Writes a key as readable text that is the same in every gate: the part of a slot's name that identifies the key.

use std::io::Write;

use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// The parts of a key, joined by `|`. A `|` within a part is escaped, so different keys have different texts.
#[derive(Debug, Default)]
pub(super) struct KeyText {
    pub(super) bytes: Vec<u8>,
    /// Whether a part has ended, so that the next one begins with `|`.
    is_between: bool,
}

impl KeyText {
    /// Writes the `|` before a part, if another part has ended.
    fn begin(&mut self) {
        if core::mem::take(&mut self.is_between) {
            self.bytes.push(b'|');
        }
    }
}

impl KeySink for KeyText {
    fn network(&mut self, network: Network) {
        self.begin();
        write!(self.bytes, "{network}").expect("memory takes what is written");
    }

    fn write(&mut self, bytes: &[u8]) {
        self.begin();
        for &byte in bytes {
            if matches!(byte, b'|' | b'\\') {
                self.bytes.push(b'\\');
            }
            self.bytes.push(byte);
        }
    }

    fn end_part(&mut self) {
        // An empty part is a part, too.
        self.begin();
        self.is_between = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(parts: &[&[u8]]) -> Vec<u8> {
        let mut key = KeyText::default();
        for part in parts {
            key.write(part);
            key.end_part();
        }
        key.bytes
    }

    #[test]
    fn different_keys_have_different_texts() {
        let keys: [&[&[u8]]; 7] =
            [&[b"a|b"], &[b"a", b"b"], &[b"a\\", b"b"], &[b"a\\|b"], &[b"a", b"", b"b"], &[b"", b"ab"], &[b"ab", b""]];
        for (index, key) in keys.iter().enumerate() {
            for other in &keys[index + 1..] {
                assert_ne!(text(key), text(other));
            }
        }
        assert_eq!(text(&[b"203.0.113.7", b"curl"]), b"203.0.113.7|curl");
    }
}

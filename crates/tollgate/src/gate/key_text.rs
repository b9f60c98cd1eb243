//! A key as a person reads it.

use std::io::Write;

use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// Takes a key, piece by piece; a space goes between its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyText {
    text: Vec<u8>,
    part_ended: bool,
}

impl KeyText {
    /// The key as it came: escape it before it goes to a terminal or a page.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text
    }
}

impl KeySink for KeyText {
    fn network(&mut self, network: Network) {
        self.write(b"");
        // Memory takes all that is written to it.
        let _ = write!(self.text, "{network}");
    }

    fn write(&mut self, bytes: &[u8]) {
        if std::mem::take(&mut self.part_ended) {
            self.text.push(b' ');
        }
        self.text.extend_from_slice(bytes);
    }

    fn end_part(&mut self) {
        self.part_ended = true;
    }
}

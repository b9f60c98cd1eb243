//! What the account of a request is called, without an allocation: it is asked for at every request where a rule looks at flags.

use std::fmt::{self, Write};

use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

use crate::watch::NAME_BYTES_MAX;

/// A key as a person reads it, cut to the length that the watch knows accounts by.
pub(crate) struct AccountName {
    bytes: [u8; NAME_BYTES_MAX],
    length: usize,
    part_ended: bool,
}

impl Default for AccountName {
    fn default() -> Self {
        Self { bytes: [0; NAME_BYTES_MAX], length: 0, part_ended: false }
    }
}

impl AccountName {
    /// The name as it came.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
    }

    fn begin(&mut self) {
        if std::mem::take(&mut self.part_ended) {
            self.push(b" ");
        }
    }
}

impl Write for AccountName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl KeySink for AccountName {
    fn network(&mut self, network: Network) {
        self.begin();
        let _ = write!(self, "{network}");
    }

    fn write(&mut self, bytes: &[u8]) {
        self.begin();
        self.push(bytes);
    }

    fn end_part(&mut self) {
        self.part_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::class::Class;
    use tollgate_wire::http1::RequestHead;

    use super::super::identify::RequestView;
    use super::super::key_text::KeyText;
    use super::*;

    #[test]
    fn an_account_is_called_what_the_watch_calls_it() {
        let mut head = RequestHead::default();
        let long = "k".repeat(400);
        head.parse(format!("POST /a/7 HTTP/1.1\r\nHost: site\r\nX-Key: {long}\r\nX-Id: \u{e9}\r\n\r\n").as_bytes())
            .unwrap();
        for client in ["203.0.113.7", "2001:db8::1"] {
            let view = RequestView { client: client.parse().unwrap(), head: &head, is_flagged: false };
            for class in ["ip/32", "ip/24", "header:x-key", "header:x-id", "method+path", "ip/16+header:x-key+host"] {
                let class = Class::parse(class).unwrap();
                let (mut name, mut text) = (AccountName::default(), KeyText::default());
                assert!(class.write_key(&view, &mut name) && class.write_key(&view, &mut text));
                assert_eq!(name.as_bytes(), &text.as_bytes()[..text.as_bytes().len().min(NAME_BYTES_MAX)], "{class}");
            }
        }
    }
}

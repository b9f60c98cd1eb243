//! The key of a request under a rule as readable text, such as `203.0.113.0/24 GET`.
//!
//! Exemptions, holds and the admin API identify a key by this text. It equals the [`Name`] under which the limiter
//! lists a throttled key, except that a long name is truncated.
//!
//! [`Name`]: tollgate_gatekeeper::names::Name

use std::io::Write;

use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// Collects the parts of a key, separated by spaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyText {
    text: Vec<u8>,
    /// Whether a part has ended, so that a space must precede the next one.
    part_ended: bool,
}

impl KeyText {
    /// The key as received: escape it before it goes to a terminal or a page.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text
    }
}

impl KeySink for KeyText {
    fn network(&mut self, network: Network) {
        // Separates the network from the part before it.
        self.write(b"");
        // Writing to memory cannot fail.
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

#[cfg(test)]
mod tests {
    use tollgate_core::class::Class;
    use tollgate_gatekeeper::names::{NAME_BYTES_MAX, Name};
    use tollgate_gatekeeper::truncation::DIGEST_BYTES;
    use tollgate_wire::http1::RequestHead;

    use super::super::identify::RequestView;
    use super::*;

    #[test]
    fn a_name_is_the_readable_key_up_to_its_maximum_length() {
        let mut head = RequestHead::default();
        let long = "k".repeat(400);
        head.parse(format!("POST /a/7 HTTP/1.1\r\nHost: site\r\nX-Key: {long}\r\nX-Id: \u{e9}\r\n\r\n").as_bytes())
            .unwrap();
        for client in ["203.0.113.7", "2001:db8::1"] {
            let view = RequestView::new(client.parse().unwrap(), &head);
            for class in ["ip/32", "ip/24", "header:x-key", "header:x-id", "method+path", "ip/16+header:x-key+host"] {
                let class = Class::parse(class).unwrap();
                let mut text = KeyText::default();
                let name = Name::of(|writer| assert!(class.write_key(&view, writer)));
                assert!(class.write_key(&view, &mut text));
                let whole = text.as_bytes();
                let kept = if whole.len() < NAME_BYTES_MAX { whole.len() } else { NAME_BYTES_MAX - DIGEST_BYTES };
                assert_eq!((&name.as_bytes()[..kept], name.is_cut()), (&whole[..kept], kept < whole.len()), "{class}");
            }
        }
    }
}

//! Converts keys to text and back, for the journal of the watch, the admin API and reports of other programs.
//!
//! Keys are bytes that a client sends, and operators and programs need text. A byte that is not part of valid UTF-8 is
//! written as `\xNN`, and so is a backslash that would otherwise start such an escape. Most keys are therefore shown
//! unchanged, different keys have different texts, and a text can be converted back to its key.

use std::borrow::Cow;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Text for a key.
pub(crate) fn escape_key(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !name.contains(&b'\\') => Cow::Borrowed(text),
        _ => {
            let mut text = Vec::with_capacity(name.len() + 16);
            escape_key_pieces(name, |piece| text.extend_from_slice(piece));
            Cow::Owned(String::from_utf8_lossy(&text).into_owned())
        }
    }
}

/// The same in pieces, without building a string.
pub(super) fn escape_key_pieces(name: &[u8], mut write: impl FnMut(&[u8])) {
    let written = |byte: u8| [b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    for chunk in name.utf8_chunks() {
        let (valid, mut from) = (chunk.valid().as_bytes(), 0);
        for at in (0..valid.len()).filter(|&at| escaped_at(valid, at).is_some()) {
            write(&valid[from..at]);
            write(&written(valid[at]));
            from = at + 1;
        }
        write(&valid[from..]);
        chunk.invalid().iter().for_each(|byte| write(&written(*byte)));
    }
}

/// The key that [`escape_key`] converted to this text.
pub(crate) fn unescape_key(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    let Some(first) = (0..bytes.len()).find(|&at| escaped_at(bytes, at).is_some()) else { return Cow::Borrowed(bytes) };
    let (mut name, mut at) = (bytes[..first].to_vec(), first);
    while at < bytes.len() {
        let (byte, length) = escaped_at(bytes, at).map_or((bytes[at], 1), |byte| (byte, 4));
        name.push(byte);
        at += length;
    }
    Cow::Owned(name)
}

/// The text that [`escape_key`] produces for the same key. Other programs may write `\xE9` instead of `\xe9`, or escape
/// more bytes than necessary.
pub(crate) fn canonical_key(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains("\\x") { Cow::Owned(escape_key(&unescape_key(&text)).into_owned()) } else { text }
}

/// The byte that `\xNN` at this position stands for.
fn escaped_at(text: &[u8], at: usize) -> Option<u8> {
    let [b'\\', b'x', high, low] = text.get(at..at + 4)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys with many escapes and characters that look like escapes.
    fn names() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"\\".to_vec()),
            Just(b"x".to_vec()),
            Just(b"\\x4".to_vec()),
            Just(b"\\x5C".to_vec()),
            Just("\u{e9}".as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
            "[0-9a-fA-F ]{0,3}".prop_map(String::into_bytes),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_text_is_converted_back_to_its_key(name in names()) {
            let text = escape_key(&name).into_owned();
            let back = unescape_key(&text).into_owned();
            prop_assert_eq!(back, name);
            prop_assert_eq!(canonical_key(Cow::Borrowed(&text)), text.as_str());
        }

        #[test]
        fn every_spelling_of_a_key_has_the_same_canonical_text(name in names()) {
            let out: String = name.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            prop_assert_eq!(canonical_key(Cow::Owned(out)), escape_key(&name));
        }
    }

    #[test]
    fn a_key_without_escapes_is_shown_unchanged() {
        for (name, text) in [
            (&b"curl/8.0"[..], "curl/8.0"),
            (br"C:\temp\xyz", r"C:\temp\xyz"),
            (b"caf\xe9", r"caf\xe9"),
            (br"caf\xe9", r"caf\x5cxe9"),
            ("caf\u{e9}".as_bytes(), "caf\u{e9}"),
        ] {
            assert_eq!((&*escape_key(name), &*unescape_key(text)), (text, name));
        }
    }
}

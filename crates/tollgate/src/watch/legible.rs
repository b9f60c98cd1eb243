//! Names as text, and back.
//!
//! What a client calls itself is bytes, and what people and programs are shown is text. A byte that is no text is written as `\xNN`; so is a backslash that would
//! otherwise be read as the beginning of such a byte, and no other. So almost every name is shown as it is, two names stay two, and whoever shows one again means
//! the caller it was shown for.

use std::borrow::Cow;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A name as text.
pub(crate) fn legible(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !name.contains(&b'\\') => Cow::Borrowed(text),
        _ => {
            let mut text = Vec::with_capacity(name.len() + 16);
            write_legible(name, |piece| text.extend_from_slice(piece));
            Cow::Owned(String::from_utf8_lossy(&text).into_owned())
        }
    }
}

/// The same piece by piece, where text is not to be built.
pub(super) fn write_legible(name: &[u8], mut write: impl FnMut(&[u8])) {
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

/// The name that a text was made of by [`legible`].
pub(crate) fn name_of(text: &str) -> Cow<'_, [u8]> {
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

/// A text as [`legible`] writes the name that it stands for: others may write `\xE9` where we write `\xe9`, or write out what need not be.
pub(crate) fn canonical(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains("\\x") { Cow::Owned(legible(&name_of(&text)).into_owned()) } else { text }
}

/// The byte that is written as `\xNN` at this place.
fn escaped_at(text: &[u8], at: usize) -> Option<u8> {
    let [b'\\', b'x', high, low] = text.get(at..at + 4)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Names full of what could be mistaken.
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
        fn a_name_that_was_shown_is_the_name_it_was_shown_for(name in names()) {
            let text = legible(&name).into_owned();
            let back = name_of(&text).into_owned();
            prop_assert_eq!(back, name);
            prop_assert_eq!(canonical(Cow::Borrowed(&text)), text.as_str());
        }

        #[test]
        fn however_a_name_is_written_it_is_one(name in names()) {
            let out: String = name.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            prop_assert_eq!(canonical(Cow::Owned(out)), legible(&name));
        }
    }

    #[test]
    fn a_name_that_cannot_be_mistaken_is_shown_as_it_is() {
        for (name, text) in [
            (&b"curl/8.0"[..], "curl/8.0"),
            (br"C:\temp\xyz", r"C:\temp\xyz"),
            (b"caf\xe9", r"caf\xe9"),
            (br"caf\xe9", r"caf\x5cxe9"),
            ("caf\u{e9}".as_bytes(), "caf\u{e9}"),
        ] {
            assert_eq!((&*legible(name), &*name_of(text)), (text, name));
        }
    }
}

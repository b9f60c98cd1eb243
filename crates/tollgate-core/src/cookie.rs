//! Cookies in a `Cookie` header, as keys and in conditions of rules.

use alloc::vec::Vec;

use crate::form::{AMBIGUOUS, decoded, write_decoded};
use crate::key_sink::KeySink;

/// The first cookie of this name in a `Cookie` header.
pub fn find_cookie<'a>(cookies: &'a [u8], name: &str) -> Option<&'a [u8]> {
    pairs(cookies).filter_map(pair).find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value)
}

/// The cookies of a header, as texts such as `name=value`.
pub(crate) fn pairs(cookies: &[u8]) -> impl Iterator<Item = &[u8]> {
    cookies.split(|&byte| byte == b';').map(<[u8]>::trim_ascii)
}

/// The name and value of a cookie; `None` if there is no `=`.
pub(crate) fn pair(cookie: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = cookie.iter().position(|&byte| byte == b'=')?;
    Some((cookie[..equals].trim_ascii(), cookie[equals + 1..].trim_ascii()))
}

/// Hands the value of a cookie to `sink` as a key. PHP and Node decode percent-escapes in values, and other servers
/// remove quotes around them, so a client could write one value in many ways; all of them are one key. Servers disagree
/// about backslashes within quotes, so all values with them share one key.
pub(crate) fn write_value(value: &[u8], sink: &mut impl KeySink) {
    if is_plain(value) {
        return sink.write(value);
    }
    match unquoted(value) {
        Some(value) => write_decoded(value, sink),
        None => sink.write(AMBIGUOUS),
    }
}

/// The value as servers that decode it read it; `None` if all servers read it alike. [`AMBIGUOUS`] for a quoted value
/// with backslashes.
pub(crate) fn other_reading(value: &[u8]) -> Option<Vec<u8>> {
    (!is_plain(value)).then(|| unquoted(value).map_or_else(|| AMBIGUOUS.to_vec(), |value| decoded(value).collect()))
}

/// Whether a value has no escape and no quote, so that all servers read it alike.
fn is_plain(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, b'%' | b'+' | b'"'))
}

/// The value without the quotes around it, if it has any. `None` if there is a backslash within them.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inner @ .., b'"'] if inner.contains(&b'\\') => None,
        [b'"', inner @ .., b'"'] => Some(inner),
        _ => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_sink::CollectedKey;

    #[test]
    fn every_spelling_of_a_value_is_one_key() {
        let key = |value: &str| {
            let mut key = CollectedKey::default();
            write_value(value.as_bytes(), &mut key);
            key.0
        };
        for value in ["abc", "%61bc", "\"abc\"", "a%62%63", "\"%61bc\""] {
            assert_eq!(key(value), b"abc", "{value}");
        }
        assert_eq!((key("a+b"), key("a%20b")), (b"a b".to_vec(), b"a b".to_vec()));
        assert_eq!((key("%"), key("\""), key("")), (b"%".to_vec(), b"\"".to_vec(), Vec::new()));
        assert_eq!((key("\"\\141bc\""), key("\"a\\\"bc\"")), (AMBIGUOUS.to_vec(), AMBIGUOUS.to_vec()));
        assert_eq!((other_reading(b"abc"), other_reading(b"%61bc")), (None, Some(b"abc".to_vec())));
    }

    #[test]
    fn a_cookie_is_found_with_white_space_around_its_name() {
        assert_eq!(find_cookie(b"a=b;sid = x ; sid=y", "sid"), Some(&b"x"[..]));
        assert_eq!(find_cookie(b"xsid=1; sid", "sid"), None);
    }
}

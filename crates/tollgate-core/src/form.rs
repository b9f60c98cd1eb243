//! Form-encoded text, in which `%41` is `A` and `+` is a space: the decoding that servers apply to query parameters and
//! some of them to cookies, and the names of variables that PHP derives from both.

use crate::key_sink::KeySink;
use crate::path::escape;

/// The key of all requests whose value of a cookie, parameter or JSON field servers may read in different ways. The
/// byte 0 keeps it apart from real values.
pub const AMBIGUOUS: &[u8] = b"\0?";

/// The bytes of a form-encoded text. A `%` without two hexadecimal digits after it is kept.
pub(crate) fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        if let Some(byte) = escape(rest) {
            rest = &rest[3..];
            return Some(byte);
        }
        rest = after;
        Some(if first == b'+' { b' ' } else { first })
    })
}

/// Hands the bytes of a form-encoded text to `sink`.
pub(crate) fn write_decoded(text: &[u8], sink: &mut impl KeySink) {
    let (mut piece, mut length) = ([0; 64], 0);
    for byte in decoded(text) {
        piece[length] = byte;
        length += 1;
        if length == piece.len() {
            sink.write(&piece);
            length = 0;
        }
    }
    sink.write(&piece[..length]);
}

/// Whether PHP reads the cookie or parameter `name` as the one that a rule calls `known`. In PHP, a space, `.` and `[`
/// are `_`, spaces at the beginning are dropped, the text after a `[` is the index into an array, and a NUL ends the
/// name. Versions before 7.4.11 also decode names of cookies.
pub(crate) fn is_same_php_variable(known: &[u8], name: &[u8]) -> bool {
    let variable = |byte: u8| if matches!(byte, b' ' | b'.' | b'[') { b'_' } else { byte };
    let mut name = decoded(name).skip_while(|&byte| byte == b' ');
    let mut known = decoded(known).skip_while(|&byte| byte == b' ');
    loop {
        match (known.next(), name.next()) {
            (None, None | Some(b'[' | 0)) => return true,
            (Some(a), Some(b)) if variable(a) == variable(b) => {}
            _ => return false,
        }
    }
}

//! Untrusted text on a terminal.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Escapes everything in untrusted text that a terminal would interpret or hide: control characters, invalid UTF-8,
/// and characters that break lines, change the direction or have no width.
pub(crate) fn escape(text: &(impl AsRef<[u8]> + ?Sized)) -> String {
    let bytes = text.as_ref();
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for symbol in chunk.valid().chars() {
            match symbol {
                '\0' => text.push_str(r"\0"),
                symbol if symbol.is_control() && (symbol as u32) > 0x7f => {
                    _ = write!(text, r"\u{{{:x}}}", symbol as u32)
                }
                symbol if symbol.is_control() && !matches!(symbol, '\n' | '\r' | '\t') => {
                    _ = write!(text, r"\x{:02x}", symbol as u32)
                }
                symbol if symbol.is_control() => text.extend(symbol.escape_default()),
                symbol if symbol.width().unwrap_or(0) == 0 || matches!(symbol, '\u{2028}' | '\u{2029}') => {
                    _ = write!(text, r"\u{{{:x}}}", symbol as u32)
                }
                symbol => text.push(symbol),
            }
        }
        for byte in chunk.invalid() {
            _ = write!(text, r"\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_texts_contain_no_control_sequences() {
        assert_eq!(escape("a\x1b[31mb\r\n\u{202e}c é"), r"a\x1b[31mb\r\n\u{202e}c é");
        assert_eq!(escape(b"\xff\0"), r"\xff\0");
    }
}

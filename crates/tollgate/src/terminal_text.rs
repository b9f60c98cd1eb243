//! Text on a terminal, for the output of commands: escapes untrusted text, and fits lines to a width.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Escapes everything in untrusted text that a terminal would interpret or hide: control characters, invalid UTF-8,
/// and characters that break lines, change the direction or have no width, such as combining accents. The escapes are
/// those of string literals in Rust. A backslash is not escaped, because keys arrive with escapes of their own; the
/// result can therefore not be converted back.
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
                // U+2028 and U+2029 break lines, but may have a width.
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

/// The characters of a line and their widths in columns. The characters of control sequences, which change the colour,
/// have the width 0. A sequence starts with an escape character and ends with the next letter.
fn columns(line: &str) -> impl Iterator<Item = (char, usize)> {
    let mut is_control = false;
    line.chars().map(move |c| {
        is_control |= c == '\x1b';
        let width = if is_control { 0 } else { c.width().unwrap_or(0) };
        is_control &= !c.is_ascii_alphabetic();
        (c, width)
    })
}

/// The number of columns of a line.
pub(crate) fn width(line: &str) -> usize {
    columns(line).map(|(_, width)| width).sum()
}

/// The first `columns_max` columns of a line. All control sequences are kept, so that the colours end.
pub(crate) fn cut(line: &str, columns_max: usize) -> String {
    let mut used = 0;
    let fits = |(_, width): &(char, usize)| {
        used += width;
        *width == 0 || used <= columns_max
    };
    columns(line).filter(fits).map(|(c, _)| c).collect()
}

/// Wraps a text into lines of at most `columns_max` columns. A longer word is a line of its own.
pub(crate) fn wrapped(text: &str, columns_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= columns_max => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_texts_contain_no_control_sequences() {
        assert_eq!(escape("a\x1b[31mb\r\n\u{202e}c é"), r"a\x1b[31mb\r\n\u{202e}c é");
        assert_eq!(escape(b"\xff\0"), r"\xff\0");
    }

    #[test]
    fn colours_have_no_width_and_stay_when_a_line_is_cut() {
        let line = "\x1b[31m名前\x1b[0mab";
        assert_eq!(width(line), 6);
        assert_eq!(cut(line, 6), line);
        assert_eq!(cut(line, 3), "\x1b[31m名\x1b[0m");
        assert_eq!(wrapped("one  two\nthree", 7), ["one two", "three"]);
    }
}

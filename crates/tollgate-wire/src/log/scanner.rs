//! A cursor over one line of JSON that extracts some values and skips the rest, without building a tree.
//!
//! It accepts RFC 8259 with two exceptions for real logs: strings may contain invalid UTF-8, and an unpaired
//! surrogate becomes U+FFFD. The nesting is stored in the bits of one integer, so no input can exhaust the
//! stack.

use super::decimal::Decimal;
use super::text::{Scratch, Text};
use super::{DEPTH_MAX, Expected, LineError};

/// The position in a line.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    /// The line.
    pub(super) line: &'a [u8],
    /// The index of the next byte.
    pub(super) at: usize,
    /// Whether no field of the current object has been read.
    is_before_first: bool,
}

impl<'a> Scanner<'a> {
    pub(super) const fn new(line: &'a [u8]) -> Self {
        Self { line, at: 0, is_before_first: false }
    }

    /// An error at this position.
    pub(super) const fn error(&self, expected: Expected) -> LineError {
        LineError::at(self.at, expected)
    }

    /// The next byte that is not white space.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.line.get(self.at) {
                // One comparison handles nearly every byte; only the rest is distinguished.
                Some(byte) if *byte > b' ' => return Some(*byte),
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Skips `byte` if it is next.
    #[inline(always)]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline(always)]
    fn require(&mut self, byte: u8, expected: Expected) -> Result<(), LineError> {
        if self.take(byte) { Ok(()) } else { Err(self.error(expected)) }
    }

    /// Requires that only white space is left.
    pub(super) fn end(&mut self) -> Result<(), LineError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.error(Expected::End)) }
    }

    /// Enters an object.
    pub(super) fn enter_object(&mut self) -> Result<(), LineError> {
        self.is_before_first = true;
        self.require(b'{', Expected::Object)
    }

    /// The name of the next field, with its colon consumed; `None` at the end of the object.
    #[inline(always)]
    pub(super) fn next_field(&mut self, scratch: &mut Scratch) -> Result<Option<Text>, LineError> {
        let is_first = core::mem::take(&mut self.is_before_first);
        let mut next = self.peek();
        if next == Some(b'}') {
            self.at += 1;
            return Ok(None);
        }
        if !is_first {
            if next != Some(b',') {
                return Err(self.error(Expected::CommaOrEnd));
            }
            self.at += 1;
            next = self.peek();
        }
        if next != Some(b'"') {
            return Err(self.error(Expected::FieldName));
        }
        let name = self.string(scratch)?;
        self.require(b':', Expected::Colon)?;
        Ok(Some(name))
    }

    /// Skips `null` if it is next.
    pub(super) fn null(&mut self) -> bool {
        self.peek();
        let found = self.line[self.at..].starts_with(b"null");
        self.at += if found { 4 } else { 0 };
        found
    }

    /// A number.
    #[inline]
    pub(super) fn number(&mut self) -> Result<Decimal, LineError> {
        self.peek();
        let (number, length) = Decimal::prefix(&self.line[self.at..]).ok_or(self.error(Expected::Number))?;
        self.at += length;
        Ok(number)
    }

    /// A string, decoded if it has escapes.
    #[inline(always)]
    pub(super) fn string(&mut self, scratch: &mut Scratch) -> Result<Text, LineError> {
        self.require(b'"', Expected::String)?;
        let start = self.at;
        self.at += plain_length(&self.line[start..]);
        if self.line.get(self.at) == Some(&b'"') {
            self.at += 1;
            return Ok(Text::in_line(start, self.at - 1));
        }
        self.decoded_string(start, scratch)
    }

    /// A string with an escape that started at `start`.
    #[cold]
    #[inline(never)]
    fn decoded_string(&mut self, start: usize, scratch: &mut Scratch) -> Result<Text, LineError> {
        self.at = start;
        let mut outcome = Ok(());
        let text = scratch.decode(|bytes| outcome = self.decode(&mut |part| bytes.extend_from_slice(part)));
        outcome.map(|()| text)
    }

    /// Passes the parts of a string to `write`, after its opening quote.
    fn decode(&mut self, write: &mut impl FnMut(&[u8])) -> Result<(), LineError> {
        loop {
            let start = self.at;
            self.at += plain_length(&self.line[start..]);
            write(&self.line[start..self.at]);
            match self.line.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape(write)?,
                Some(_) => return Err(self.error(Expected::Escape)),
                None => return Err(self.error(Expected::String)),
            }
        }
    }

    fn escape(&mut self, write: &mut impl FnMut(&[u8])) -> Result<(), LineError> {
        let error = self.error(Expected::Escape);
        self.at += 2;
        let byte = match self.line.get(self.at - 1) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(plain @ (b'"' | b'\\' | b'/')) => *plain,
            Some(b'u') => {
                let symbol = self.symbol().ok_or(error)?;
                write(symbol.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(error),
        };
        write(&[byte]);
        Ok(())
    }

    /// The character after `\u`, combined with its low surrogate if there is one.
    fn symbol(&mut self) -> Option<char> {
        let high = self.hex()?;
        if (0xD800..0xDC00).contains(&high) && self.line[self.at..].starts_with(b"\\u") {
            let after = self.at;
            self.at += 2;
            let low = self.hex()?;
            if (0xDC00..0xE000).contains(&low) {
                return char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
            }
            self.at = after;
        }
        Some(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.line.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
    }

    /// Skips a string without storing it, but validates it.
    fn skip_string(&mut self) -> Result<(), LineError> {
        self.at += 1;
        self.decode(&mut |_| {})
    }

    /// Skips any value.
    pub(super) fn skip_value(&mut self) -> Result<(), LineError> {
        // One bit per level: 1 for an object, 0 for an array.
        let mut levels = 0u64;
        let mut depth = 0;
        loop {
            let opened = self.skip_scalar_or_open()?;
            if let Some(object) = opened {
                if depth == DEPTH_MAX {
                    return Err(self.error(Expected::ShallowerValue));
                }
                depth += 1;
                levels = levels << 1 | u64::from(object);
                if !self.take(closer(object)) {
                    self.skip_name_of(object)?;
                    continue;
                }
                depth -= 1;
                levels >>= 1;
            }
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let object = levels & 1 == 1;
                if self.take(b',') {
                    self.skip_name_of(object)?;
                    break;
                }
                self.require(closer(object), Expected::CommaOrEnd)?;
                depth -= 1;
                levels >>= 1;
            }
        }
    }

    /// Skips a string, number or literal, or enters an object (`true`) or array (`false`).
    fn skip_scalar_or_open(&mut self) -> Result<Option<bool>, LineError> {
        match self.peek() {
            Some(open @ (b'{' | b'[')) => {
                self.at += 1;
                return Ok(Some(open == b'{'));
            }
            Some(b'"') => self.skip_string()?,
            Some(b'-' | b'0'..=b'9') => drop(self.number()?),
            _ => {
                let rest = &self.line[self.at..];
                let word = [&b"null"[..], b"true", b"false"].into_iter().find(|word| rest.starts_with(word));
                self.at += word.ok_or(self.error(Expected::Value))?.len();
            }
        }
        Ok(None)
    }

    fn skip_name_of(&mut self, object: bool) -> Result<(), LineError> {
        if !object {
            return Ok(());
        }
        if self.peek() != Some(b'"') {
            return Err(self.error(Expected::FieldName));
        }
        self.skip_string()?;
        self.require(b':', Expected::Colon)
    }
}

const fn closer(object: bool) -> u8 {
    if object { b'}' } else { b']' }
}

/// The number of bytes before the first quote, backslash or control character. It processes eight bytes at a
/// time, because most texts are too short for a vectorized search to pay off.
#[inline]
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        // Per byte: below 0x20, or zero after the XOR. Borrows only affect bytes above a true hit.
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let equal = (quote.wrapping_sub(ONES) & !quote) | (backslash.wrapping_sub(ONES) & !backslash);
        let hits = (control | equal) & TOPS;
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(json: &str) -> Result<Vec<u8>, LineError> {
        let mut scratch = Scratch::default();
        let mut scanner = Scanner::new(json.as_bytes());
        let text = scanner.string(&mut scratch)?;
        scanner.end()?;
        Ok(scratch.bytes(text, json.as_bytes()).to_vec())
    }

    fn skips(json: &[u8]) -> Result<(), LineError> {
        let mut scanner = Scanner::new(json);
        scanner.skip_value()?;
        scanner.end()
    }

    #[test]
    fn escapes_become_the_characters_they_stand_for() {
        for (json, expect) in [
            (r#""plain""#, "plain"),
            (r#""a\"b\\c\/d\n\t\r\b\f""#, "a\"b\\c/d\n\t\r\u{8}\u{c}"),
            (r#""\u00e9\u20AC""#, "é€"),
            (r#""\ud83d\ude00!""#, "😀!"),
            (r#""\ud83dx""#, "\u{fffd}x"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
            (r#""\ude00""#, "\u{fffd}"),
            (r#""\u0000""#, "\0"),
        ] {
            assert_eq!(decoded(json).unwrap(), expect.as_bytes(), "{json}");
        }
    }

    #[test]
    fn a_string_that_never_ends_or_escapes_wrongly_is_a_fault() {
        for json in [r#"""#, r#""abc"#, r#""\"#, r#""\q""#, r#""\u12"#, r#""\u12G4""#, "\"a\nb\"", "\"a\0b\"", "x"] {
            assert!(decoded(json).is_err(), "{json}");
            assert!(skips(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nest = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(skips(&nest(64)), Ok(()));
        assert_eq!(skips(&nest(65)).unwrap_err().expected, Expected::ShallowerValue);
        assert_eq!(skips(&vec![b'['; 10_000_000]).unwrap_err().column, 66);
    }

    proptest! {
        #[test]
        fn the_plain_length_ends_at_the_first_special_byte(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let expect = bytes.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20)).unwrap_or(bytes.len());
            prop_assert_eq!(plain_length(&bytes), expect);
        }

        #[test]
        fn exactly_valid_json_is_skipped(json in "[\\[\\]{}:, \"a\\\\u01-9.eE+ntrulfs-]{0,24}") {
            let expect = serde_json::from_str::<serde::de::IgnoredAny>(&json);
            prop_assert_eq!(skips(json.as_bytes()).is_ok(), expect.is_ok(), "{:?} {:?}", json, expect);
        }

        #[test]
        fn any_value_is_skipped_completely(value in value()) {
            let json = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(skips(&json), Ok(()));
            for cut in 1..json.len() {
                let whole_number = serde_json::from_slice::<serde::de::IgnoredAny>(&json[..cut]).is_ok();
                prop_assert_eq!(skips(&json[..cut]).is_ok(), whole_number);
            }
        }

        #[test]
        fn any_string_comes_back(text in any::<String>()) {
            prop_assert_eq!(decoded(&serde_json::to_string(&text).unwrap()).unwrap(), text.as_bytes());
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}

//! The texts that the parsers of this folder find in a line, and the buffer for those with escapes, which are decoded.
//!
//! While a line is parsed, a text is a position, because the buffer may move when it grows. Afterwards it becomes a
//! slice.

use tollgate_core::inputs::separator;
use tollgate_core::path::NormalPath;

use super::{Expected, FIELDS_MAX, LineError};

/// The position of a text, in the line or, if the top bit of `end` is set, in [`Scratch::decoded`]. The bit is part of
/// `end` so that a `Result<Text, LineError>` has two machine words, which a function can return in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text {
    start: u32,
    end: u32,
}

/// The bit of [`Text::end`] for a text in the buffer.
const DECODED: u32 = 1 << 31;

/// Buffers that are reused for every line.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The decoded text so far.
    pub(super) decoded: Vec<u8>,
    /// Names and values; the index is a [`List`].
    fields: [Vec<(Text, Text)>; 2],
    /// The paths that backends may read instead of the request's.
    normal_path: NormalPath,
}

/// A list of fields.
#[derive(Clone, Copy, Debug)]
pub(super) enum List {
    Headers,
    Attributes,
}

impl Text {
    /// `line[start..end]`, which [`LINE_BYTES_MAX`](super::LINE_BYTES_MAX) keeps within 32 bits.
    pub(super) const fn in_line(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.start == self.end & !DECODED
    }

    /// The part from `start` to `end`, relative to the start of this text.
    pub(super) const fn slice(self, start: usize, end: usize) -> Self {
        Self { start: self.start + start as u32, end: (self.start + end as u32) | (self.end & DECODED) }
    }

    /// The bytes of this text.
    pub(super) fn bytes<'a>(self, line: &'a [u8], decoded: &'a [u8]) -> &'a [u8] {
        let side = if self.end & DECODED == 0 { line } else { decoded };
        side.get(self.start as usize..(self.end & !DECODED) as usize).unwrap_or_default()
    }
}

impl Scratch {
    /// Removes the last line and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.decoded.clear();
        self.fields.iter_mut().for_each(Vec::clear);
    }

    /// Normalizes the path of `target`. `without_authority` removes the scheme and host of a target that is a URL.
    pub(super) fn read_path(&mut self, target: Text, line: &[u8], without_authority: impl Fn(&[u8]) -> &[u8]) {
        let target = without_authority(target.bytes(line, &self.decoded));
        self.normal_path.read(target.split(|&byte| byte == b'?').next().unwrap_or_default());
    }

    /// The paths that backends may read instead of the last one; `None` if all read the same.
    pub(super) fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    /// The fields of the line so far, as names and values.
    pub(super) fn fields(&self, list: List) -> &[(Text, Text)] {
        &self.fields[list as usize]
    }

    /// The bytes of a text while the line is being parsed.
    pub(super) fn bytes<'a>(&'a self, text: Text, line: &'a [u8]) -> &'a [u8] {
        text.bytes(line, &self.decoded)
    }

    /// Writes a text that cannot be borrowed from the line.
    pub(super) fn decode(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Text {
        let start = self.decoded.len();
        write(&mut self.decoded);
        Text { start: start as u32, end: self.decoded.len() as u32 | DECODED }
    }

    /// A copy of the text with dashes instead of underscores: the header `user-agent` of `user_agent`.
    pub(super) fn dashed(&mut self, text: Text, line: &[u8]) -> Text {
        let start = self.decoded.len();
        if text.end & DECODED == 0 {
            self.decoded.extend_from_slice(text.bytes(line, &[]));
        } else {
            self.decoded.extend_from_within(text.start as usize..(text.end & !DECODED) as usize);
        }
        self.decoded[start..].iter_mut().filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
        Text { start: start as u32, end: self.decoded.len() as u32 | DECODED }
    }

    /// Adds a field to a list; `column` is the position for the error if there are too many.
    pub(super) fn add(&mut self, list: List, name: Text, value: Text, column: usize) -> Result<(), LineError> {
        let fields = &mut self.fields[list as usize];
        if fields.len() >= FIELDS_MAX {
            return Err(LineError::at(column, Expected::FewerFields));
        }
        fields.push((name, value));
        Ok(())
    }

    /// Joins a value to the last field of a list.
    pub(super) fn join_last(&mut self, list: List, value: Text, line: &[u8]) {
        let Some(&(name, before)) = self.fields(list).last() else { return };
        // This is rare, so it may allocate.
        let lower_case = self.bytes(name, line).to_ascii_lowercase();
        let joined = [self.bytes(before, line), separator(&lower_case), self.bytes(value, line)].concat();
        let joined = self.decode(|bytes| bytes.extend_from_slice(&joined));
        if let Some(last) = self.fields[list as usize].last_mut() {
            last.1 = joined;
        }
    }

    /// Adds a field with a fixed name.
    pub(super) fn add_named(&mut self, list: List, name: &str, value: Text, column: usize) -> Result<(), LineError> {
        let name = self.decode(|bytes| bytes.extend_from_slice(name.as_bytes()));
        self.add(list, name, value, column)
    }
}

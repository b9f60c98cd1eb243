//! Text of a line: where it lies, and the buffer for the little of it that had to be decoded.
//!
//! While a line is read its texts are positions, because the buffer may still move; once the line is whole they become slices.

use tollgate_core::inputs::separator;
use tollgate_core::path::NormalPath;

use super::{Expected, FIELDS_MAX, Fault};

/// Where a text lies: in the line itself, or decoded in the scratch buffer. Two machine words with its fault are what a
/// function can return without going through memory, so the side is the top bit of `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text {
    start: u32,
    end: u32,
}

const DECODED: u32 = 1 << 31;

/// The buffer that one line after the other uses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    headers: Vec<(Text, Text)>,
    attributes: Vec<(Text, Text)>,
    normal_path: NormalPath,
}

/// Which list of fields.
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

    /// The part of this text from `start` to `end`, both counted from where it begins.
    pub(super) const fn slice(self, start: usize, end: usize) -> Self {
        Self { start: self.start + start as u32, end: (self.start + end as u32) | (self.end & DECODED) }
    }

    /// The bytes meant.
    pub(super) fn bytes<'a>(self, line: &'a [u8], decoded: &'a [u8]) -> &'a [u8] {
        let side = if self.end & DECODED == 0 { line } else { decoded };
        side.get(self.start as usize..(self.end & !DECODED) as usize).unwrap_or_default()
    }
}

impl Scratch {
    /// Forgets the last line; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.headers.clear();
        self.attributes.clear();
    }

    /// What was decoded so far.
    pub(super) fn decoded(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the path of the line, given its target without an authority.
    pub(super) fn read_path(&mut self, target: Text, line: &[u8], without_authority: impl Fn(&[u8]) -> &[u8]) {
        let target = without_authority(target.bytes(line, &self.bytes));
        self.normal_path.read(target.split(|&byte| byte == b'?').next().unwrap_or_default());
    }

    /// The readings of the path that was read last.
    pub(super) fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    /// The headers of the line so far, as names and values.
    pub(super) fn headers(&self) -> &[(Text, Text)] {
        &self.headers
    }

    /// What else the caller named so far.
    pub(super) fn attributes(&self) -> &[(Text, Text)] {
        &self.attributes
    }

    /// The bytes of a text, while the line is still being read.
    pub(super) fn bytes<'a>(&'a self, text: Text, line: &'a [u8]) -> &'a [u8] {
        text.bytes(line, &self.bytes)
    }

    /// Writes a text that cannot be borrowed from the line.
    pub(super) fn decode(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Text {
        let start = self.bytes.len();
        write(&mut self.bytes);
        Text { start: start as u32, end: self.bytes.len() as u32 | DECODED }
    }

    /// The text with dashes for underscores.
    pub(super) fn dashed(&mut self, text: Text, line: &[u8]) -> Text {
        let start = self.bytes.len();
        if text.end & DECODED == 0 {
            self.bytes.extend_from_slice(text.bytes(line, &[]));
        } else {
            self.bytes.extend_from_within(text.start as usize..(text.end & !DECODED) as usize);
        }
        self.bytes[start..].iter_mut().filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
        Text { start: start as u32, end: self.bytes.len() as u32 | DECODED }
    }

    /// Adds a field to a list; `column` is where to point if it is one too many.
    pub(super) fn add(&mut self, list: List, name: Text, value: Text, column: usize) -> Result<(), Fault> {
        let fields = match list {
            List::Headers => &mut self.headers,
            List::Attributes => &mut self.attributes,
        };
        if fields.len() >= FIELDS_MAX {
            return Err(Fault::at(column, Expected::FewerFields));
        }
        fields.push((name, value));
        Ok(())
    }

    /// Adds a value to that of the last field of a list.
    pub(super) fn join_last(&mut self, list: List, value: Text, line: &[u8]) {
        let fields = match list {
            List::Headers => &self.headers,
            List::Attributes => &self.attributes,
        };
        let Some(&(name, before)) = fields.last() else { return };
        // Rare, so this may allocate.
        let lower_case = self.bytes(name, line).to_ascii_lowercase();
        let joined = [self.bytes(before, line), separator(&lower_case), self.bytes(value, line)].concat();
        let joined = self.decode(|bytes| bytes.extend_from_slice(&joined));
        let fields = match list {
            List::Headers => &mut self.headers,
            List::Attributes => &mut self.attributes,
        };
        if let Some(last) = fields.last_mut() {
            last.1 = joined;
        }
    }

    /// Adds a header whose name is known here.
    pub(super) fn add_header(&mut self, name: &str, value: Text, column: usize) -> Result<(), Fault> {
        let name = self.decode(|bytes| bytes.extend_from_slice(name.as_bytes()));
        self.add(List::Headers, name, value, column)
    }
}

//! Reads the lines of a recording from a file or standard input, decompressed if necessary, in constant memory.
//!
//! Input is untrusted: a line that is longer than the maximum is reported and skipped without being stored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tollgate_wire::log::LINE_BYTES_MAX;

/// Size of the buffer: two of the longest lines, so that an incomplete one can be completed.
const BUFFER_BYTES: usize = 2 * LINE_BYTES_MAX;
/// The first bytes of a gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// The first bytes of other compression formats, with the command that decompresses them.
const OTHER_MAGIC: [(&[u8], &str); 3] =
    [(&[0x28, 0xb5, 0x2f, 0xfd], "zstd -dc"), (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz -dc"), (b"BZh", "bzip2 -dc")];

/// A recording that is being read.
pub(super) struct Input {
    /// The bytes of the recording, decompressed.
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    /// Start of the part of the buffer that was read and not yet returned.
    start: usize,
    /// End of that part.
    end: usize,
    /// Whether `source` has no more bytes.
    ended: bool,
    /// Whether the input is compressed with gzip.
    pub(crate) packed: bool,
    /// Bytes read so far, decompressed.
    bytes_read: u64,
    /// The size of the file in bytes, compressed if it is; `None` for a pipe.
    pub(super) bytes_total: Option<u64>,
    /// The file to rewind, if there is one. It shares its position with the file inside `source`.
    file: Option<File>,
}

/// The next part of the input.
pub(super) enum InputLine<'a> {
    /// A line without its line feed.
    Line(&'a [u8]),
    /// A line that exceeds the maximum length.
    TooLong,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            return Self::new(Box::new(io::stdin().lock()), None);
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory: name a file"));
        }
        if !metadata.is_file() {
            return Self::new(Box::new(file), None);
        }
        let mut input = Self::new(Box::new(file.try_clone()?), Some(metadata.len()))?;
        input.file = Some(file);
        Ok(input)
    }

    /// Copies an input that can be read only once, such as a pipe, decompressed to a temporary file.
    pub(super) fn make_rewindable(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let context =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot keep it in a temporary file: {error}"));
        let mut file = tempfile::tempfile().map_err(context)?;
        while self.start < self.end {
            file.write_all(&self.buffer[self.start..self.end]).map_err(context)?;
            self.start = self.end;
            self.fill()?;
        }
        self.file = Some(file);
        self.rewind()
    }

    /// Starts again from the first line.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        let Some(mut file) = self.file.take() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "cannot be read twice"));
        };
        file.rewind()?;
        let packed = self.packed;
        let bytes_total = file.metadata()?.len();
        *self = Self::new(Box::new(file.try_clone()?), Some(bytes_total))?;
        (self.packed, self.file) = (packed, Some(file));
        Ok(())
    }

    fn new(raw: Box<dyn Read>, bytes_total: Option<u64>) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(LINE_BYTES_MAX, raw);
        let head = reader.fill_buf()?;
        if let Some((_, command)) = OTHER_MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
            let message = format!("has an unsupported compression: try `{command} FILE | tollgate replay -`");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let packed = head.starts_with(GZIP_MAGIC);
        let source: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(reader)) } else { Box::new(reader) };
        let mut input = Self {
            source,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            ended: false,
            packed,
            bytes_read: 0,
            bytes_total,
            file: None,
        };
        input.fill()?;
        if input.head().starts_with(b"\xef\xbb\xbf") {
            input.start = 3;
        }
        Ok(input)
    }

    /// The beginning of the input, as far as it has been read.
    pub(super) fn head(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The progress through [`bytes_total`](Self::bytes_total): the position in the file. Of a pipe, the number of
    /// bytes read.
    pub(super) fn position(&self) -> u64 {
        let in_file = self.file.as_ref().and_then(|mut file| file.stream_position().ok());
        in_file.unwrap_or(self.bytes_read)
    }

    /// The next line, or `None` at the end.
    #[inline]
    pub(super) fn next(&mut self) -> io::Result<Option<InputLine<'_>>> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.start + searched..self.end];
            if let Some(found) = memchr::memchr(b'\n', unread) {
                let line = self.start..self.start + searched + found;
                self.start = line.end + 1;
                return Ok(Some(Self::piece(&self.buffer[line])));
            }
            searched = self.end - self.start;
            if searched > LINE_BYTES_MAX {
                return self.skip_line().map(|()| Some(InputLine::TooLong));
            }
            if self.ended {
                let line = self.start..self.end;
                self.start = self.end;
                return Ok((!line.is_empty()).then(|| Self::piece(&self.buffer[line])));
            }
            self.fill()?;
        }
    }

    fn piece(line: &[u8]) -> InputLine<'_> {
        if line.len() > LINE_BYTES_MAX { InputLine::TooLong } else { InputLine::Line(line) }
    }

    /// Moves unread bytes to the front and reads until the buffer is full or the source has ended.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while !self.ended && self.end < self.buffer.len() {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(bytes) => {
                    self.end += bytes;
                    self.bytes_read += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Skips everything up to and including the next line feed.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.start..self.end]) {
                self.start += found + 1;
                return Ok(());
            }
            self.start = self.end;
            if self.ended {
                return Ok(());
            }
            self.fill()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    /// Returns a few bytes per read, as a pipe does: the bytes, the position, and the bytes per read.
    struct Dribble(Vec<u8>, usize, usize);

    impl Read for Dribble {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let bytes = self.2.min(buffer.len()).min(self.0.len() - self.1);
            buffer[..bytes].copy_from_slice(&self.0[self.1..self.1 + bytes]);
            self.1 += bytes;
            Ok(bytes)
        }
    }

    fn lines(bytes: Vec<u8>, step: usize) -> Vec<Option<Vec<u8>>> {
        let mut input = Input::new(Box::new(Dribble(bytes, 0, step)), None).unwrap();
        let mut lines = Vec::new();
        while let Some(piece) = input.next().unwrap() {
            lines.push(match piece {
                InputLine::Line(line) => Some(line.to_vec()),
                InputLine::TooLong => None,
            });
        }
        lines
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_compressed_input_is_decompressed_even_with_several_members() {
        let bytes = [packed(b"one\ntwo\n"), packed(b"three")].concat();
        assert_eq!(lines(bytes, 7), ["one", "two", "three"].map(|line| Some(line.into())));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        for length in [LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 10_000_000] {
            let bytes = [b"a\n", &vec![b'x'; length][..], b"\nb"].concat();
            let lines = lines(bytes, 100_000);
            assert_eq!(lines.len(), 3);
            assert_eq!(lines[1].is_some(), length <= LINE_BYTES_MAX);
            assert_eq!(lines[2].as_deref(), Some(&b"b"[..]));
        }
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_line() {
        assert_eq!(lines(b"\xef\xbb\xbfa\n".to_vec(), 1), [Some(b"a".to_vec())]);
    }

    #[test]
    fn other_compressions_are_reported_with_their_command() {
        let input = Input::new(Box::new(&b"\x28\xb5\x2f\xfd...."[..]), None);
        assert!(input.err().unwrap().to_string().contains("zstd -dc"));
    }

    #[test]
    fn a_truncated_compressed_input_is_an_error() {
        let mut bytes = packed(&b"line\n".repeat(100_000));
        bytes.truncate(bytes.len() / 2);
        let mut input = Input::new(Box::new(io::Cursor::new(bytes)), None);
        let broken = loop {
            match input.as_mut().map(Input::next) {
                Err(_) | Ok(Err(_)) => break true,
                Ok(Ok(None)) => break false,
                Ok(Ok(Some(_))) => {}
            }
        };
        assert!(broken);
    }

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in(text in "[a-c\n\r]{0,200}", step in 1usize..50) {
            let mut expect: Vec<_> = text.split('\n').map(|line| Some(line.as_bytes().to_vec())).collect();
            if expect.last().is_some_and(|line| line.as_ref().is_some_and(Vec::is_empty)) {
                expect.pop();
            }
            prop_assert_eq!(lines(text.into_bytes(), step), expect);
        }
    }
}

//! The chunked transfer coding: a strict decoder for the bodies that the gate and the HTTP door receive, and an encoder
//! for those that the gate sends.
//!
//! Lenient decoders disagree about chunk extensions and trailers. Here extensions are skipped and trailers are parsed,
//! both up to a maximum length, and a line that does not end in CRLF is malformed.

use core::ops::Range;
use std::io::Write as _;

use super::fields::{Fields, Name};

/// The maximum length of the extensions of one chunk, in bytes.
const EXTENSION_BYTES_MAX: u32 = 1024;
/// The maximum number of hexadecimal digits of a chunk size, with which it always fits 64 bits.
const SIZE_DIGITS_MAX: u8 = 15;
/// The maximum length of the trailer section, in bytes.
pub const TRAILERS_BYTES_MAX: usize = 8 * 1024;
/// The maximum number of trailers; a body with more is malformed.
const TRAILER_FIELDS_MAX: usize = 32;

/// The bytes are not the chunked coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The result of one decoding step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This range of the input is data. The input up to the end of the range is consumed.
    Data(Range<usize>),
    /// The input up to this index is consumed, and more is needed.
    More(usize),
    /// The body is complete and its trailers are in [`Decoder::trailers`]. The input up to this index is
    /// consumed.
    End(usize),
}

/// The expected input. A chunk goes through the states from `Size` to `DataLf`; the last one, whose size is 0, goes
/// from `SizeLf` to `Trailers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// A digit of the size, or the end of the size.
    #[default]
    Size,
    /// The extensions after the size.
    Extension,
    /// The LF of the size line.
    SizeLf,
    Data,
    /// The CR after the data.
    DataCr,
    /// The LF after the data.
    DataLf,
    Trailers,
    End,
}

/// Decodes one body.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: State,
    /// The bytes of the chunk that have not been decoded; in the size line, the size read so far.
    left: u64,
    /// The number of digits of the size read so far.
    digits: u8,
    /// The bytes of the chunk's extensions read so far.
    extension_len: u32,
    /// The trailer section read so far.
    trailer_text: Vec<u8>,
    trailers: Fields,
}

impl Decoder {
    /// Prepares for the next body and keeps the memory.
    pub fn reset(&mut self) {
        (self.state, self.left, self.digits, self.extension_len) = (State::Size, 0, 0, 0);
        self.trailer_text.clear();
        self.trailers.clear();
    }

    /// The trailers that [`push_trailer`] accepts; empty until the body has ended.
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// Decodes from the start of `input`, up to the first data or the end of the input.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Malformed> {
        let mut at = 0;
        while at < input.len() {
            match self.state {
                State::Data => {
                    let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
                    self.left -= length as u64;
                    if self.left == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Step::Data(at..at + length));
                }
                State::Trailers => return self.trailer_lines(input, at),
                State::End => return Ok(Step::End(at)),
                _ => {
                    self.framing_byte(input[at])?;
                    at += 1;
                }
            }
        }
        Ok(if self.state == State::End { Step::End(at) } else { Step::More(at) })
    }

    /// Processes one byte that is neither data nor part of the trailers.
    fn framing_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        self.state = match (self.state, byte) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if self.digits < SIZE_DIGITS_MAX => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                self.left = self.left * 16 + u64::from(digit);
                self.digits += 1;
                State::Size
            }
            (State::Size, b'\r') if self.digits > 0 => State::SizeLf,
            (State::Size, b';') if self.digits > 0 => State::Extension,
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'\t' | b' '..=b'~' | 0x80..) if self.extension_len < EXTENSION_BYTES_MAX => {
                self.extension_len += 1;
                State::Extension
            }
            (State::SizeLf, b'\n') if self.left == 0 => State::Trailers,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => {
                self.digits = 0;
                self.extension_len = 0;
                State::Size
            }
            _ => return Err(Malformed),
        };
        Ok(())
    }

    /// Reads trailers from `input[at..]`, up to the empty line that ends them.
    fn trailer_lines(&mut self, input: &[u8], mut at: usize) -> Result<Step, Malformed> {
        while let Some(found) = memchr::memchr(b'\n', &input[at..]) {
            self.trailer_text.extend_from_slice(&input[at..=at + found]);
            if self.trailer_text.len() > TRAILERS_BYTES_MAX || !self.trailer_text.ends_with(b"\r\n") {
                return Err(Malformed);
            }
            at += found + 1;
            if self.trailer_text.len() == 2 || self.trailer_text.ends_with(b"\r\n\r\n") {
                self.parse_trailers()?;
                self.state = State::End;
                return Ok(Step::End(at));
            }
        }
        self.trailer_text.extend_from_slice(&input[at..]);
        if self.trailer_text.len() > TRAILERS_BYTES_MAX {
            return Err(Malformed);
        }
        Ok(Step::More(input.len()))
    }

    fn parse_trailers(&mut self) -> Result<(), Malformed> {
        if self.trailer_text.len() == 2 {
            return Ok(());
        }
        let mut slots = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
        match httparse::parse_headers(&self.trailer_text, &mut slots) {
            Ok(httparse::Status::Complete((end, parsed))) if end == self.trailer_text.len() => {
                for header in parsed {
                    push_trailer(&mut self.trailers, header.name.as_bytes(), header.value);
                }
                Ok(())
            }
            _ => Err(Malformed),
        }
    }
}

/// Adds a trailer, unless the field must not be one. These are the fields that a gate uses, such as those for framing
/// and addressing, and fields about content, authentication, caching or limits.
pub fn push_trailer(trailers: &mut Fields, name: &[u8], value: &[u8]) {
    let lower = name.to_ascii_lowercase();
    let forbidden = matches!(
        &lower[..],
        b"content-encoding"
            | b"content-type"
            | b"content-range"
            | b"trailer"
            | b"authorization"
            | b"set-cookie"
            | b"retry-after"
            | b"cache-control"
            | b"ratelimit"
            | b"ratelimit-policy"
    );
    if Name::of(&lower) == Name::Other && !forbidden {
        trailers.push(&lower, value);
    }
}

/// Writes the size line of a chunk. The caller appends the data and a CRLF.
pub fn write_size(out: &mut Vec<u8>, length: usize) {
    write!(out, "{length:x}\r\n").expect("writing to memory succeeds");
}

/// Writes the last chunk and the trailers.
pub fn write_end(out: &mut Vec<u8>, trailers: Option<&Fields>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers.iter().flat_map(|trailers| trailers.iter()) {
        out.extend_from_slice(field.name_bytes);
        out.extend_from_slice(b": ");
        out.extend_from_slice(field.value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes `input` in pieces. Returns the data, the trailers as text, and the rest.
    fn decode(input: &[u8], piece: usize) -> Result<(Vec<u8>, String, Vec<u8>), Malformed> {
        let mut decoder = Decoder::default();
        let (mut data, mut start, mut end) = (Vec::new(), 0, 0);
        loop {
            match decoder.decode(&input[start..end])? {
                Step::Data(range) => {
                    data.extend_from_slice(&input[start + range.start..start + range.end]);
                    start += range.end;
                }
                Step::More(used) if end < input.len() => {
                    start += used;
                    end = (end + piece).min(input.len());
                }
                Step::More(_) => return Err(Malformed),
                Step::End(used) => {
                    let trailers = decoder.trailers().iter().map(|field| {
                        format!(
                            "{}={};",
                            String::from_utf8_lossy(field.name_bytes),
                            String::from_utf8_lossy(field.value)
                        )
                    });
                    return Ok((data, trailers.collect(), input[start + used..].to_vec()));
                }
            }
        }
    }

    #[test]
    fn a_body_is_decoded_for_any_segmentation() {
        let input = b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\nGET /";
        for piece in 1..input.len() {
            let (data, trailers, rest) = decode(input, piece).unwrap();
            assert_eq!((&data[..], &trailers[..]), (&b"abc0123456789"[..], "x-sum=1;"), "in pieces of {piece}");
            assert!(b"GET /".ends_with(&rest[..]));
        }
        assert_eq!(decode(b"0\r\n\r\n", 1).unwrap().0, b"");
    }

    #[test]
    fn input_that_lenient_decoders_accept_is_malformed() {
        for input in [
            &b"0_2e\r\nx"[..],
            b"0x2\r\nab\r\n0\r\n\r\n",
            b"2 \r\nab\r\n0\r\n\r\n",
            b" 2\r\nab\r\n0\r\n\r\n",
            b"+2\r\nab\r\n0\r\n\r\n",
            b"-2\r\nab\r\n0\r\n\r\n",
            b"\r\nab\r\n0\r\n\r\n",
            b";x\r\nab\r\n0\r\n\r\n",
            b"2\nab\r\n0\r\n\r\n",
            b"2\r\nabX0\r\n\r\n",
            b"2\r\nab\n0\r\n\r\n",
            b"2;a\nb\r\nab\r\n0\r\n\r\n",
            b"2;a\rb\r\nab\r\n0\r\n\r\n",
            b"2;a\0\r\nab\r\n0\r\n\r\n",
            b"0\r\n\n",
            b"0\r\nX-A: 1\n\r\n",
            b"0\r\nX-A : 1\r\n\r\n",
            b"0\r\nGET / HTTP/1.1\r\n\r\n",
            b"0\r\n folded: 1\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"10000000000000000\r\n",
            b"2\r\nab\r\n0\r\n",
            b"2\r\nab\r\n",
            b"",
        ] {
            for piece in [1, 4, 100] {
                assert_eq!(decode(input, piece), Err(Malformed), "{:?}", input.escape_ascii().to_string());
            }
        }
        let mut long = b"1;".to_vec();
        long.extend(vec![b'a'; 64 * 1024]);
        assert_eq!(decode(&long, 1000), Err(Malformed));
        let mut endless = b"0\r\n".to_vec();
        endless.extend(b"a: b\r\n".repeat(4000));
        assert_eq!(decode(&endless, 1000), Err(Malformed));
    }

    #[test]
    fn a_size_is_written_in_hex() {
        for (length, text) in [(0, "0\r\n"), (15, "f\r\n"), (16, "10\r\n"), (65536, "10000\r\n")] {
            let mut out = Vec::new();
            write_size(&mut out, length);
            assert_eq!(out, text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn written_data_is_read_back(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..20), piece in 1usize..400) {
            let mut coded = Vec::new();
            for chunk in &chunks {
                write_size(&mut coded, chunk.len());
                coded.extend_from_slice(chunk);
                coded.extend_from_slice(b"\r\n");
            }
            write_end(&mut coded, None);
            let (data, _, rest) = decode(&coded, piece).unwrap();
            prop_assert_eq!(data, chunks.concat());
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(input in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
            let _ = decode(&input, piece);
        }
    }
}

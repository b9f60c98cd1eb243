//! Finds the end of the head of a request or response in the bytes received so far.
//!
//! A client may send its head byte by byte. Parsing from the start on every arrival would take quadratic time
//! at little cost for the client. [`Scan`] keeps its position, so each byte is scanned once and only a
//! complete head is parsed.

use core::ops::Range;

use super::Fault;

/// The maximum number of bytes in empty lines before a head, which are skipped.
const EMPTY_LINES_BYTES_MAX: usize = 64;

/// Size limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest first line, in bytes.
    pub line_bytes_max: usize,
    /// The longest head, first line included, in bytes.
    pub head_bytes_max: usize,
}

/// Searches for the empty line that ends a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// The number of bytes that were scanned.
    seen: usize,
    /// The index of the first byte of the current line.
    line_start: usize,
    /// The index of the first byte of the head, after optional empty lines.
    head_start: usize,
    /// The number of complete lines of the head, without the empty lines before it.
    lines: usize,
}

impl Scan {
    /// Scans the bytes that arrived since the last call. `bytes` must start with the same bytes as before. Returns the
    /// range of the head, after optional empty lines; `None` if it is incomplete.
    ///
    /// With `strict`, a line that ends in a bare LF is an error, because two parsers may disagree about it. Requests
    /// are scanned strictly, responses are not.
    pub fn look(&mut self, bytes: &[u8], bounds: Bounds, strict: bool) -> Result<Option<Range<usize>>, Fault> {
        while let Some(found) = memchr::memchr(b'\n', &bytes[self.seen..]) {
            let newline = self.seen + found;
            let carriage_return = newline > self.line_start && bytes[newline - 1] == b'\r';
            if strict && !carriage_return {
                return Err(Fault::Malformed("a line ends in a bare LF"));
            }
            let text_end = newline - usize::from(carriage_return);
            self.seen = newline + 1;
            if text_end == self.line_start {
                if self.lines > 0 {
                    return if self.seen - self.head_start > bounds.head_bytes_max {
                        Err(Fault::HeadTooLarge)
                    } else {
                        Ok(Some(self.head_start..self.seen))
                    };
                }
                self.head_start = self.seen;
            } else {
                self.lines += 1;
            }
            if self.lines == 1 && text_end - self.head_start > bounds.line_bytes_max {
                return Err(Fault::TargetTooLong);
            }
            self.line_start = self.seen;
            self.check(bounds)?;
        }
        self.seen = bytes.len();
        self.check(bounds)?;
        Ok(None)
    }

    /// Checks the bounds before the head is complete.
    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        let read = self.seen - self.head_start;
        // The line may end in CRLF.
        if self.lines == 0 && read > bounds.line_bytes_max + 2 {
            return Err(Fault::TargetTooLong);
        }
        if read > bounds.head_bytes_max || self.head_start > EMPTY_LINES_BYTES_MAX {
            return Err(Fault::HeadTooLarge);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { line_bytes_max: 40, head_bytes_max: 100 };

    fn look_in_pieces(bytes: &[u8], piece: usize, strict: bool) -> Result<Option<Range<usize>>, Fault> {
        let mut scan = Scan::default();
        let mut end = 0;
        loop {
            end = (end + piece).min(bytes.len());
            match scan.look(&bytes[..end], BOUNDS, strict)? {
                None if end < bytes.len() => {}
                found => return Ok(found),
            }
        }
    }

    #[test]
    fn a_head_is_found_for_any_segmentation() {
        for piece in 1..20 {
            let found = look_in_pieces(b"\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nbody", piece, true);
            assert_eq!(found, Ok(Some(4..31)), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_bare_lf_is_an_error_only_in_strict_mode() {
        let bytes = b"GET / HTTP/1.1\nhost: a\n\n";
        assert!(matches!(look_in_pieces(bytes, 3, true), Err(Fault::Malformed(_))));
        assert_eq!(look_in_pieces(bytes, 3, false), Ok(Some(0..bytes.len())));
    }

    #[test]
    fn an_overlong_head_is_rejected_before_it_ends() {
        assert_eq!(look_in_pieces(&[b'a'; 50], 1, true), Err(Fault::TargetTooLong));
        let mut head = b"GET / HTTP/1.1\r\n".to_vec();
        head.extend([b'a'; 100]);
        assert_eq!(look_in_pieces(&head, 7, true), Err(Fault::HeadTooLarge));
        assert_eq!(look_in_pieces(&b"\r\n".repeat(40), 7, true), Err(Fault::HeadTooLarge));
    }
}

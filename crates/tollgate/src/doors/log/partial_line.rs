//! Collects the whole lines of a stream of bytes, for the followed access log. The unfinished line is bounded.

use tollgate_wire::log::LINE_BYTES_MAX;

/// The unfinished line at the end of what has been read.
#[derive(Debug, Default)]
pub(super) struct PartialLine {
    bytes: Vec<u8>,
    /// Whether the unfinished line is too long, so that the rest of it is skipped.
    is_skipped: bool,
}

impl PartialLine {
    /// Adds bytes and returns the lines that are complete now, or `None` if there are none.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let Some(last) = memchr::memrchr(b'\n', bytes) else {
            self.keep(bytes);
            return None;
        };
        let (whole, rest) = bytes.split_at(last + 1);
        let mut lines = std::mem::take(&mut self.bytes);
        let start = match std::mem::take(&mut self.is_skipped) {
            true => memchr::memchr(b'\n', whole).map_or(whole.len(), |end| end + 1),
            false => 0,
        };
        lines.extend_from_slice(&whole[start..]);
        self.keep(rest);
        (!lines.is_empty()).then_some(lines)
    }

    /// Appends to the unfinished line, or drops it if it is too long.
    fn keep(&mut self, bytes: &[u8]) {
        if self.is_skipped || self.bytes.len() + bytes.len() > LINE_BYTES_MAX {
            self.bytes = Vec::new();
            self.is_skipped = !bytes.is_empty() || self.is_skipped;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let mut partial = PartialLine::default();
        for _ in 0..100 {
            assert_eq!(partial.push(&[b'x'; 10_000]), None);
            assert!(partial.bytes.len() <= LINE_BYTES_MAX);
        }
        assert_eq!(partial.push(b"end of it\nnext\nun"), Some(b"next\n".to_vec()));
        assert_eq!(partial.push(b"finished\n"), Some(b"unfinished\n".to_vec()));
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_are_cut(text in "[ab\n]{0,200}", step in 1usize..20) {
            let mut partial = PartialLine::default();
            let pieces = text.as_bytes().chunks(step).filter_map(|piece| partial.push(piece));
            let lines: Vec<u8> = pieces.flatten().collect();
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            prop_assert_eq!(lines, text.as_bytes()[..whole].to_vec());
        }
    }
}

//! Sorts the lines of an access log by time, within a window.
//!
//! Servers write a line when a request ends, and several processes write to one file, so lines are slightly out of
//! order. A rule that got them in that order would refuse requests that it admits in the right order. The first pass
//! over the recording measures how late lines are; this buffer holds lines for that long.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate_core::time::{Moment, Span};

/// The maximum window. Lines that are later than this are processed at the time of the line before.
pub(super) const WINDOW_MAX: Span = Span::from_secs(600);
/// The maximum size of the buffered lines, in bytes. Beyond it, the earliest line is returned before its time.
const BYTES_MAX: usize = 64 << 20;
/// The overhead of one line in the buffer, in bytes.
const LINE_BYTES: usize = 64;

/// Buffered lines, ordered by time and then by position.
#[derive(Default)]
pub(super) struct SortedLines {
    /// How far a line may be behind the newest one: lines wait for this long.
    window: Span,
    /// The latest time of any line so far.
    newest: Moment,
    /// The buffered lines, the earliest on top.
    heap: BinaryHeap<Reverse<BufferedLine>>,
    /// The position of the next line in the file.
    next_position: u64,
    /// The size of the buffered lines with their overhead.
    bytes: usize,
    /// The number of lines that were moved before a line that precedes them in the file.
    pub(crate) moved: u64,
    /// Buffers of returned lines, for reuse.
    spare: Vec<Vec<u8>>,
}

/// A line in the buffer. Its order is that of its fields: time, position in the file, text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BufferedLine {
    at: Moment,
    position: u64,
    pub(super) text: Vec<u8>,
}

impl SortedLines {
    /// Sorts lines that are at most `lateness` behind a later one.
    pub(super) fn new(lateness: Span) -> Self {
        Self { window: lateness.min(WINDOW_MAX), ..Self::default() }
    }

    /// Whether any line is out of order. If none is, lines need not be buffered.
    pub(super) const fn is_needed(&self) -> bool {
        !self.window.is_zero()
    }

    /// Adds a line.
    pub(super) fn push(&mut self, at: Moment, line: &[u8]) {
        self.moved += u64::from(at < self.newest && self.newest.since(at) <= self.window);
        self.newest = self.newest.max(at);
        let mut text = self.spare.pop().unwrap_or_default();
        text.clear();
        text.extend_from_slice(line);
        self.bytes += text.len() + LINE_BYTES;
        self.heap.push(Reverse(BufferedLine { at, position: self.next_position, text }));
        self.next_position += 1;
    }

    /// The next line that no later line can precede, or any line if `at_end`.
    pub(super) fn pop(&mut self, at_end: bool) -> Option<BufferedLine> {
        let Reverse(first) = self.heap.peek()?;
        let is_due = self.newest.since(first.at) >= self.window || self.bytes > BYTES_MAX;
        if !(is_due || at_end) {
            return None;
        }
        let Reverse(line) = self.heap.pop()?;
        self.bytes -= line.text.len() + LINE_BYTES;
        Some(line)
    }

    /// Takes back the memory of a line.
    pub(super) fn recycle(&mut self, line: BufferedLine) {
        if self.spare.len() < 64 && line.text.capacity() <= 4096 {
            self.spare.push(line.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_within_the_window_are_sorted_and_equal_times_keep_their_order(
            times_ms in prop::collection::vec(0u64..2000, 0..200),
        ) {
            let mut newest = 0;
            let lateness = times_ms.iter().map(|at_ms| {
                newest = newest.max(*at_ms);
                newest - at_ms
            }).max().unwrap_or(0);
            let mut lines = SortedLines::new(Span::from_millis(lateness));
            let mut out = Vec::new();
            for (index, at_ms) in times_ms.iter().enumerate() {
                lines.push(Moment::from_millis(*at_ms), index.to_string().as_bytes());
                while let Some(line) = lines.pop(false) {
                    out.push((line.at, line.position));
                    lines.recycle(line);
                }
            }
            out.extend(std::iter::from_fn(|| lines.pop(true)).map(|line| (line.at, line.position)));
            let mut expect: Vec<_> =
                times_ms.iter().enumerate().map(|(index, at_ms)| (Moment::from_millis(*at_ms), index as u64)).collect();
            expect.sort();
            prop_assert_eq!(out, expect);
        }
    }

    #[test]
    fn the_buffer_is_bounded() {
        let mut lines = SortedLines::new(Span::MAX);
        for second in 0..3000 {
            lines.push(Moment::from_millis(second), &[b'x'; 100_000]);
            while lines.pop(false).is_some() {}
        }
        assert!(lines.bytes <= BYTES_MAX);
    }
}

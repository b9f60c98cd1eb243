//! The read buffer of a connection: bytes that were received and are not consumed yet.
//!
//! One buffer per connection for its whole life would make ten thousand idle connections cost hundreds of megabytes. A
//! [`ReadBuffer`] has memory only while it contains bytes. Its blocks go back to a free list of the thread.

use std::cell::RefCell;
use std::ops::Range;

/// The first size of a buffer, in bytes.
const SMALL: usize = 16 * 1024;
/// The smallest block of [`ReadBuffer::compact`], in bytes.
const COMPACT_MIN: usize = 256;
/// The size of a buffer after a read has filled it, in bytes. A head must fit into it.
pub(crate) const LARGE: usize = 64 * 1024;
/// Free blocks of each size that a thread keeps: 5 MiB together.
const FREE_MAX: usize = 64;

thread_local! {
    /// Free blocks of the sizes [`SMALL`] and [`LARGE`].
    static FREE: RefCell<[Vec<Vec<u8>>; 2]> = RefCell::default();
}

fn take_block(size: usize) -> Vec<u8> {
    let free = FREE.with_borrow_mut(|free| free[usize::from(size == LARGE)].pop());
    free.unwrap_or_else(|| vec![0; size])
}

fn give_block(block: Vec<u8>) {
    FREE.with_borrow_mut(|free| {
        let list = &mut free[usize::from(block.len() == LARGE)];
        if matches!(block.len(), SMALL | LARGE) && list.len() < FREE_MAX {
            list.push(block);
        }
    });
}

/// Bytes that were received and are not consumed yet.
#[derive(Default)]
pub(crate) struct ReadBuffer {
    /// Empty if the buffer has no memory.
    block: Vec<u8>,
    /// The part of the block with bytes that are not consumed yet.
    held: Range<usize>,
}

impl ReadBuffer {
    /// The bytes that are not consumed yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block[self.held.clone()]
    }

    /// Whether all bytes are consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether no more can be received: it contains [`LARGE`] bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= LARGE
    }

    /// Removes the first `length` bytes.
    pub(crate) fn consume(&mut self, length: usize) {
        self.held.start += length;
        debug_assert!(self.held.start <= self.held.end, "more used up than there was");
        if self.held.is_empty() {
            self.held = 0..0;
        }
    }

    /// Free space to read into. It is empty only if the buffer is full. Allocates a block if there is none.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.block.is_empty() {
            self.block = take_block(SMALL);
        } else if self.block.len() < SMALL {
            self.move_to(take_block(SMALL));
        } else if self.held.end == self.block.len() {
            self.make_room();
        }
        &mut self.block[self.held.end..]
    }

    /// Adds `length` bytes that were received into the free space.
    pub(crate) fn filled(&mut self, length: usize) {
        self.held.end += length;
        debug_assert!(self.held.end <= self.block.len(), "more filled than there was room");
        // More bytes are probably waiting, and a bulk transfer is faster in larger pieces.
        if self.held.end == self.block.len() && self.block.len() == SMALL {
            self.move_to(take_block(LARGE));
        }
    }

    /// Frees the block if it contains nothing.
    pub(crate) fn free_if_empty(&mut self) {
        if self.held.is_empty() && !self.block.is_empty() {
            self.held = 0..0;
            give_block(std::mem::take(&mut self.block));
        }
    }

    /// Frees memory that the bytes do not need. Call it while the rest of a message is awaited: otherwise a peer that
    /// sends one byte and stops would hold a whole block.
    pub(crate) fn compact(&mut self) {
        let length = self.held.len();
        if length == 0 {
            self.free_if_empty();
        } else if length <= self.block.len() / 4 && self.block.len() >= SMALL {
            self.move_to(vec![0; length.next_power_of_two().max(COMPACT_MIN)]);
        }
    }

    fn make_room(&mut self) {
        if self.held.start > 0 {
            self.block.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        } else if self.block.len() < LARGE {
            self.move_to(take_block(LARGE));
        }
    }

    fn move_to(&mut self, mut block: Vec<u8>) {
        let length = self.held.len();
        block[..length].copy_from_slice(self.bytes());
        give_block(std::mem::replace(&mut self.block, block));
        self.held = 0..length;
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        give_block(std::mem::take(&mut self.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(buffer: &mut ReadBuffer, length: usize, byte: u8) {
        let mut left = length;
        while left > 0 {
            let room = buffer.room();
            let step = room.len().min(left);
            room[..step].fill(byte);
            buffer.filled(step);
            left -= step;
        }
    }

    #[test]
    fn a_buffer_with_nothing_in_it_has_no_memory() {
        let mut buffer = ReadBuffer::default();
        fill(&mut buffer, 10, b'a');
        buffer.free_if_empty();
        assert_eq!(buffer.bytes(), [b'a'; 10]);
        buffer.consume(10);
        buffer.free_if_empty();
        assert!(buffer.block.is_empty());
    }

    #[test]
    fn a_few_bytes_take_little_memory_while_more_are_waited_for() {
        let mut buffer = ReadBuffer::default();
        fill(&mut buffer, 10, b'a');
        buffer.compact();
        assert_eq!((buffer.bytes(), buffer.block.len()), (&[b'a'; 10][..], COMPACT_MIN));
        fill(&mut buffer, 1000, b'b');
        assert_eq!(buffer.bytes()[..12], *b"aaaaaaaaaabb");
        buffer.compact();
        assert_eq!((buffer.bytes().len(), buffer.block.len()), (1010, 1024));
        fill(&mut buffer, SMALL / 2, b'c');
        buffer.compact();
        assert_eq!(buffer.block.len(), SMALL, "most of it is used");
        let length = buffer.bytes().len();
        buffer.consume(length);
        buffer.compact();
        assert!(buffer.block.is_empty());
    }

    #[test]
    fn bytes_survive_growth_and_moving() {
        let mut buffer = ReadBuffer::default();
        fill(&mut buffer, SMALL - 1, b'a');
        buffer.consume(SMALL - 11);
        fill(&mut buffer, LARGE - 10, b'b');
        assert!(buffer.is_full());
        assert!(buffer.room().is_empty());
        assert_eq!(&buffer.bytes()[..12], b"aaaaaaaaaabb");
        assert_eq!(buffer.bytes().len(), LARGE);
    }
}

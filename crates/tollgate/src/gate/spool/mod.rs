//! Buffers for responses whose clients read more slowly than the backend sends.
//!
//! Without them a client that does not read keeps a worker of the backend busy for as long as it likes: the gate's socket fills, then the backend's, and then
//! the backend waits. With them the backend finishes, and the gate waits instead.
//!
//! An [`Overflow`] is a queue of blocks for one response. It has no memory until the client's socket takes no more. The first
//! blocks are in memory. When the response has [`MEMORY_BLOCKS_MAX`] of them, or when there is no more memory for it, full blocks go to the spool file
//! ([`disk`]), and come back one at a time as the client reads. Bounds are in [`budget`]. When they are reached, there is no room, and the backend waits.

mod budget;
mod disk;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::body::Broken;
use crate::settings::ResponseBuffer as Settings;
use budget::{Budget, Share, Store};
use disk::{Disk, Slot, Written};

/// The size of a block. One read of a backend's socket is at most as large.
const BLOCK_BYTES: usize = 64 * 1024;
/// Blocks of one response in memory, if the spool can be used: 1 MiB.
const MEMORY_BLOCKS_MAX: usize = 16;
/// Blocks that a response needs in memory to go through the spool: the one that is sent and the one that is filled.
const STAGING_BLOCKS: usize = 2;

/// The buffers of all workers.
pub(crate) struct Buffers {
    budget: Budget,
    disk: Disk,
}

impl Buffers {
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        Ok(Self { budget: Budget::new(settings), disk: Disk::new(settings.dir.clone())? })
    }

    /// Changes the bounds; the directory stays.
    pub(crate) fn reload(&self, settings: &Settings) {
        self.budget.reload(settings);
    }

    /// The bytes that are buffered in memory and in the spool.
    pub(crate) fn used(&self) -> (u64, u64) {
        self.budget.used()
    }
}

/// The part of a response that its client has not taken yet.
pub(crate) struct Overflow<'a> {
    buffers: &'a Buffers,
    client: IpAddr,
    blocks: VecDeque<Block>,
    /// Bytes of the first block that have been sent.
    sent: usize,
    /// A block of memory without content.
    spare: Option<Vec<u8>>,
    /// Blocks of memory that are counted in the budget, including `spare` and the one that is being written.
    memory_blocks: usize,
    writing: Option<oneshot::Receiver<Written>>,
    reading: Option<oneshot::Receiver<io::Result<Vec<u8>>>>,
    is_closed: bool,
    /// Whether there is no room only because the disk is not done yet, so that neither the client nor a bound holds the backend up.
    waits_for_disk: &'a Cell<bool>,
}

/// | from | to |
/// |---|---|
/// | `Memory`, full and last | `Writing` |
/// | `Writing` | `Spooled` if it was written, `Memory` if not |
/// | `Spooled`, first | `Memory`, when it was read |
enum Block {
    Memory(Vec<u8>),
    Writing(Slot),
    Spooled(Slot),
}

impl<'a> Overflow<'a> {
    pub(crate) fn new(buffers: &'a Buffers, client: IpAddr, waits_for_disk: &'a Cell<bool>) -> Self {
        Self {
            buffers,
            client,
            blocks: VecDeque::new(),
            sent: 0,
            spare: None,
            memory_blocks: 0,
            writing: None,
            reading: None,
            is_closed: false,
            waits_for_disk,
        }
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether there is no room only because the disk is not done yet.
    pub(crate) fn waits_for_disk(&self) -> &'a Cell<bool> {
        self.waits_for_disk
    }

    /// Takes nothing more if closed. What is there is still to be sent.
    pub(crate) fn set_closed(&mut self, is_closed: bool) {
        self.is_closed = is_closed;
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes as much as there is room for.
    pub(crate) fn append(&mut self, data: &mut &[u8]) {
        while !data.is_empty() && self.has_space() {
            let Some(Block::Memory(last)) = self.blocks.back_mut() else { return };
            let (now, later) = data.split_at(data.len().min(BLOCK_BYTES - last.len()));
            last.extend_from_slice(now);
            *data = later;
        }
    }

    /// Takes the last piece of a response, whatever the bounds are: the backend is done with it, and it is one piece.
    pub(crate) fn append_last(&mut self, mut data: &[u8]) {
        self.append(&mut data);
        while !data.is_empty() {
            self.buffers.budget.take_memory(self.client, Share::Unbounded);
            self.memory_blocks += 1;
            let (now, later) = data.split_at(data.len().min(BLOCK_BYTES));
            self.blocks.push_back(Block::Memory(now.to_vec()));
            data = later;
        }
    }

    /// Whether there is room for more. If not, the task is woken when the disk is done, but not when a bound is no longer reached.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> bool {
        let _ = self.poll_written(cx);
        let has_space = self.has_space();
        // A write that has just begun has to know whom to wake.
        has_space || (self.poll_written(cx).is_ready() && self.has_space())
    }

    /// The next bytes to send; none if there are none.
    pub(crate) fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<&[u8]>, Broken>> {
        loop {
            match self.blocks.front() {
                None => return Poll::Ready(Ok(None)),
                Some(Block::Memory(_)) => break,
                Some(Block::Writing(_)) => match self.poll_written(cx) {
                    Poll::Ready(written) => written?,
                    Poll::Pending => return Poll::Pending,
                },
                Some(Block::Spooled(slot)) => {
                    let slot = *slot;
                    match self.poll_read(slot, cx) {
                        Poll::Ready(read) => read?,
                        Poll::Pending => return Poll::Pending,
                    }
                }
            }
        }
        match self.blocks.front() {
            Some(Block::Memory(block)) => Poll::Ready(Ok(Some(&block[self.sent..]))),
            _ => Poll::Ready(Ok(None)),
        }
    }

    /// So many of the first bytes have been sent.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.sent += bytes;
        if let Some(Block::Memory(block)) = self.blocks.front()
            && self.sent >= block.len()
        {
            self.sent = 0;
            self.blocks.pop_front();
            self.give_memory();
        }
    }

    /// Whether the last block takes more, after another was added if there is room for one.
    fn has_space(&mut self) -> bool {
        self.waits_for_disk.set(false);
        match self.blocks.back() {
            Some(Block::Memory(last)) if last.len() < BLOCK_BYTES => !self.is_closed,
            _ => !self.is_closed && self.add_block(),
        }
    }

    fn add_block(&mut self) -> bool {
        if let Some(spare) = self.spare.take() {
            self.blocks.push_back(Block::Memory(spare));
            return true;
        }
        let (budget, disk) = (&self.buffers.budget, &self.buffers.disk);
        let is_small = self.memory_blocks < MEMORY_BLOCKS_MAX || !disk.is_usable();
        let is_staging = self.memory_blocks < STAGING_BLOCKS;
        if (is_staging && budget.take_memory(self.client, Share::Staging))
            || (is_small && self.writing.is_none() && budget.take_memory(self.client, Share::Half))
        {
            self.memory_blocks += 1;
            self.blocks.push_back(Block::Memory(Vec::with_capacity(BLOCK_BYTES)));
            return true;
        }
        let is_writing = self.writing.is_some() || self.begin_write();
        self.waits_for_disk.set(is_writing);
        false
    }

    /// Begins to move the last block to the spool, so that its memory can take more.
    fn begin_write(&mut self) -> bool {
        let Buffers { budget, disk } = self.buffers;
        // The first block is about to be sent.
        if self.blocks.len() < 2 || !disk.is_usable() || !matches!(self.blocks.back(), Some(Block::Memory(_))) {
            return false;
        }
        if !budget.take_spool(self.client) {
            return false;
        }
        let slot = disk.take_slot();
        if let Some(Block::Memory(last)) = self.blocks.pop_back() {
            match disk.write(slot, last) {
                Ok(written) => {
                    self.blocks.push_back(Block::Writing(slot));
                    self.writing = Some(written);
                    return true;
                }
                Err(last) => self.blocks.push_back(Block::Memory(last)),
            }
        }
        self.give_slot(slot);
        false
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let Poll::Ready(written) = Pin::new(writing).poll(cx) else { return Poll::Pending };
        self.writing = None;
        let place = self.blocks.iter().rposition(|block| matches!(block, Block::Writing(_)));
        let (Some(place), Ok((mut block, is_written))) = (place, written) else {
            return Poll::Ready(Err(Broken::Gone));
        };
        let Block::Writing(slot) = self.blocks[place] else { return Poll::Ready(Err(Broken::Gone)) };
        if is_written {
            self.blocks[place] = Block::Spooled(slot);
            block.clear();
            self.spare = Some(block);
        } else {
            self.blocks[place] = Block::Memory(block);
            self.give_slot(slot);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, slot: Slot, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let reading = self.reading.get_or_insert_with(|| self.buffers.disk.read(slot, BLOCK_BYTES));
        let Poll::Ready(read) = Pin::new(reading).poll(cx) else { return Poll::Pending };
        self.reading = None;
        let Ok(Ok(block)) = read else { return Poll::Ready(Err(Broken::Gone)) };
        self.give_slot(slot);
        self.buffers.budget.take_memory(self.client, Share::Unbounded);
        self.memory_blocks += 1;
        self.blocks[0] = Block::Memory(block);
        Poll::Ready(Ok(()))
    }

    fn give_memory(&mut self) {
        self.memory_blocks -= 1;
        self.buffers.budget.give(Store::Memory, self.client);
    }

    fn give_slot(&self, slot: Slot) {
        self.buffers.disk.give_slot(slot);
        self.buffers.budget.give(Store::Spool, self.client);
    }
}

impl Drop for Overflow<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Overflow<'_> {
    /// Gives everything back: the client has left.
    pub(crate) fn clear(&mut self) {
        self.set_closed(true);
        (self.spare, self.writing, self.reading, self.sent) = (None, None, None, 0);
        for block in std::mem::take(&mut self.blocks) {
            if let Block::Writing(slot) | Block::Spooled(slot) = block {
                self.give_slot(slot);
            }
        }
        while self.memory_blocks > 0 {
            self.give_memory();
        }
    }
}

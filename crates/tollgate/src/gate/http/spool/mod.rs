//! Buffers for responses whose clients read more slowly than the backend sends.
//!
//! Without them a client that does not read would keep a worker of the backend busy as long as it likes: the gate's
//! socket fills, then the backend's, and then the backend waits. With them the backend finishes, and the gate waits
//! instead.
//!
//! An [`Overflow`] is a queue of blocks for one response. It has no memory until the client's socket is full. The first
//! blocks are in memory. When the response has [`MEMORY_BLOCKS_MAX`] of them, or the memory for all responses is used
//! up, full blocks are moved to the spool file ([`disk`]), and come back one at a time as the client reads. Limits are
//! in [`budget`]. When they are reached, there is no room, and the backend waits.

mod budget;
mod disk;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::body::PeerError;
use crate::settings::ResponseBuffer as Settings;
use budget::{Share, SpoolBudget};
use disk::{Disk, STUCK_AFTER, Slot};

/// The size of a block in bytes. One read of a backend's socket is at most as large.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
/// Blocks of one response in memory, if the spool can be used: 1 MiB.
const MEMORY_BLOCKS_MAX: usize = 16;
/// Blocks that a response needs in memory to go through the spool: the one that is sent and the one that is filled.
const STAGING_BLOCKS: usize = 2;
/// The last piece of a response is charged in steps of this many bytes.
const LAST_PIECE_STEP_BYTES: usize = 4 * 1024;
/// The longest wait for a block of the spool. Then the response breaks off: nothing else has its bytes.
const READ_WAIT_MAX: Duration = Duration::from_secs(60);

/// The buffers of all workers.
pub(crate) struct Buffers {
    pub(crate) budget: SpoolBudget,
    disk: Disk,
}

impl Buffers {
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        Ok(Self { budget: SpoolBudget::new(settings), disk: Disk::new(settings.dir.clone())? })
    }

    /// Takes a block of the memory for response bytes that are not in an [`Overflow`] (`h2_unsent`). Without a client
    /// only the total limit applies.
    pub(crate) fn borrow(&self, client: Option<IpAddr>) -> bool {
        self.budget.take_memory(client, Share::Half, BLOCK_BYTES)
    }

    /// Returns such a block.
    pub(crate) fn give_back(&self, client: Option<IpAddr>) {
        self.budget.give_memory(client, BLOCK_BYTES);
    }
}

/// The part of a response that its client has not read yet.
pub(crate) struct Overflow<'a> {
    buffers: &'a Buffers,
    client: IpAddr,
    blocks: VecDeque<Block>,
    /// Bytes of the first block that have been sent.
    sent: usize,
    /// A block of memory without content.
    spare: Option<Vec<u8>>,
    /// Blocks of memory in the budget, including `spare` and the one that is being written.
    memory_blocks: usize,
    /// The memory of the request's task in bytes, which counts as long as there are blocks.
    task_bytes: usize,
    /// Whether that memory is in the budget.
    is_task_charged: bool,
    /// The write of the block that is [`Block::Writing`]; there is at most one.
    writing: Option<oneshot::Receiver<bool>>,
    /// The read of the first block, which is [`Block::Spooled`].
    reading: Option<oneshot::Receiver<io::Result<Vec<u8>>>>,
    /// Wakes the task if the disk does not finish the write.
    write_deadline: Deadline,
    /// The same for the read.
    read_deadline: Deadline,
    /// Whether it accepts nothing more, except for the last piece. Set for responses that may not be buffered.
    pub(crate) is_closed: bool,
    /// Whether there was no room at some time, so that the gate stopped reading from the backend.
    pub(crate) was_full: bool,
    /// Whether there is no room now. It is counted in the budget.
    is_stalled: bool,
}

/// A block of a response, by the place where it is. Transitions:
///
/// | from | to |
/// |---|---|
/// | `Memory`, full and last | `Writing` |
/// | `Writing` | `Spooled` if it was written; `Memory` if not, or if the disk is stuck |
/// | `Spooled`, first | `Memory`, when it was read |
enum Block {
    Memory(MemoryBlock),
    Writing(Slot, Arc<Vec<u8>>),
    Spooled(Slot),
}

struct MemoryBlock {
    data: Vec<u8>,
    /// Its size, as it is counted in the budget.
    charged: usize,
}

impl MemoryBlock {
    fn whole(data: Vec<u8>) -> Self {
        Self { data, charged: BLOCK_BYTES }
    }

    /// Whether it has free space.
    fn has_space(&self) -> bool {
        self.data.len() < self.charged
    }
}

impl<'a> Overflow<'a> {
    /// An empty buffer. `task_bytes`, the memory of the request's task, is charged while it is not empty.
    pub(crate) fn new(buffers: &'a Buffers, client: IpAddr, task_bytes: usize) -> Self {
        Self {
            buffers,
            client,
            blocks: VecDeque::new(),
            sent: 0,
            spare: None,
            memory_blocks: 0,
            task_bytes,
            is_task_charged: false,
            writing: None,
            reading: None,
            write_deadline: None,
            read_deadline: None,
            is_closed: false,
            was_full: false,
            is_stalled: false,
        }
    }

    /// Whether nothing is buffered.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Records that there is no room, so that the gate waits for the client. A wait for the disk does not count.
    pub(crate) fn note_full(&mut self) {
        if !self.waits_for_disk() {
            self.was_full = true;
            self.set_stalled(true);
        }
    }

    /// Whether the gate waits for the disk, which is not the client's fault.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.writing.is_some() || self.reading.is_some()
    }

    /// Counts the response while it is stalled. A stream is never stalled, because it is not buffered.
    pub(crate) fn set_stalled(&mut self, is_stalled: bool) {
        let is_stalled = is_stalled && !self.is_closed;
        if std::mem::replace(&mut self.is_stalled, is_stalled) != is_stalled {
            self.buffers.budget.set_stalled(self.client, is_stalled);
        }
    }

    /// Takes as many bytes as there is room for. The last piece of a response is taken even if the buffer is closed:
    /// the backend has finished with it, and it is one piece.
    pub(crate) fn append(&mut self, data: &mut &[u8], is_last: bool) {
        if is_last {
            self.fill_last(data);
        }
        while !data.is_empty() && self.has_space() {
            self.fill_last(data);
        }
        if is_last {
            self.append_pieces(data, Share::Staging);
        }
    }

    /// Takes the end of a response, whatever the limits are: a few bytes, or trailers.
    pub(crate) fn append_end(&mut self, mut data: &[u8]) {
        self.fill_last(&mut data);
        self.append_pieces(&mut data, Share::Unbounded);
    }

    /// Fills the free space of the last block, if it is in memory.
    fn fill_last(&mut self, data: &mut &[u8]) {
        if let Some(Block::Memory(last)) = self.blocks.back_mut() {
            let (now, later) = data.split_at(data.len().min(last.charged - last.data.len()));
            last.data.extend_from_slice(now);
            *data = later;
        }
    }

    /// Adds blocks that are no larger than necessary, as far as the budget permits.
    fn append_pieces(&mut self, data: &mut &[u8], share: Share) {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(BLOCK_BYTES));
            let charged = now.len().next_multiple_of(LAST_PIECE_STEP_BYTES);
            if !self.take_memory(share, charged) {
                return;
            }
            self.blocks.push_back(Block::Memory(MemoryBlock { data: now.to_vec(), charged }));
            *data = later;
        }
    }

    /// Takes memory for a block from the budget, and for the task with the first one.
    fn take_memory(&mut self, share: Share, bytes: usize) -> bool {
        let task_bytes = if self.is_task_charged { 0 } else { self.task_bytes };
        if !self.buffers.budget.take_memory(Some(self.client), share, bytes + task_bytes) {
            return false;
        }
        self.is_task_charged = true;
        self.memory_blocks += 1;
        true
    }

    /// Whether there is room for more. If not, the task is woken when the disk has finished, but not when a limit is no
    /// longer reached.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> bool {
        let _ = self.poll_written(cx);
        let has_space = self.has_space();
        // A write that has just started must know which task to wake.
        has_space || (self.poll_written(cx).is_ready() && self.has_space())
    }

    /// The next bytes to send; none if there are none.
    pub(crate) fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<&[u8]>, PeerError>> {
        loop {
            match self.blocks.front() {
                None => return Poll::Ready(Ok(None)),
                Some(Block::Memory(_)) => break,
                Some(Block::Writing(..)) => ready!(self.poll_written(cx))?,
                Some(&Block::Spooled(slot)) => ready!(self.poll_read(slot, cx))?,
            }
        }
        match self.blocks.front() {
            Some(Block::Memory(block)) => Poll::Ready(Ok(Some(&block.data[self.sent..]))),
            _ => Poll::Ready(Ok(None)),
        }
    }

    /// Removes bytes that have been sent.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.sent += bytes;
        if let Some(Block::Memory(block)) = self.blocks.front()
            && self.sent >= block.data.len()
        {
            let charged = block.charged;
            self.sent = 0;
            self.blocks.pop_front();
            self.give_memory(charged);
            if self.blocks.is_empty() {
                self.give_task();
            }
        }
    }

    /// Whether the last block has space, after another one was added if there is room for it.
    fn has_space(&mut self) -> bool {
        match self.blocks.back() {
            Some(Block::Memory(last)) if last.has_space() => !self.is_closed,
            _ => !self.is_closed && self.add_block(),
        }
    }

    /// Adds an empty block in memory. Returns false if there is no room, and starts to move the last block to the
    /// spool.
    fn add_block(&mut self) -> bool {
        if let Some(spare) = self.spare.take() {
            self.blocks.push_back(Block::Memory(MemoryBlock::whole(spare)));
            return true;
        }
        let may_grow = self.memory_blocks < MEMORY_BLOCKS_MAX || !self.buffers.disk.is_usable();
        let is_staging = self.memory_blocks < STAGING_BLOCKS;
        if (is_staging && self.take_memory(Share::Staging, BLOCK_BYTES))
            || (may_grow && self.writing.is_none() && self.take_memory(Share::Half, BLOCK_BYTES))
        {
            self.blocks.push_back(Block::Memory(MemoryBlock::whole(Vec::with_capacity(BLOCK_BYTES))));
            return true;
        }
        if self.writing.is_none() {
            self.begin_write();
        }
        false
    }

    /// Starts to move the last block to the spool, so that its memory can be used again.
    fn begin_write(&mut self) -> bool {
        let Buffers { budget, disk } = self.buffers;
        // The first block is about to be sent. A smaller block is the last one of the response.
        let is_whole = |block: &Block| matches!(block, Block::Memory(last) if last.charged == BLOCK_BYTES);
        if self.blocks.len() < 2 || !disk.is_usable() || !self.blocks.back().is_some_and(is_whole) {
            return false;
        }
        if !budget.take_spool(self.client) {
            return false;
        }
        let slot = disk.take_slot();
        if let Some(Block::Memory(last)) = self.blocks.pop_back() {
            let data = Arc::new(last.data);
            if let Some(written) = disk.write(slot, &data) {
                self.blocks.push_back(Block::Writing(slot, data));
                self.writing = Some(written);
                return true;
            }
            self.blocks.push_back(Block::Memory(MemoryBlock::whole(unshared(data))));
        }
        self.give_slot(slot);
        false
    }

    /// Ready when no block is being written. If the disk failed or is stuck, the block is in memory again.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PeerError>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let is_written = match Pin::new(writing).poll(cx) {
            Poll::Ready(written) => written.unwrap_or(false),
            Poll::Pending if self.buffers.disk.is_stuck() => false,
            Poll::Pending => {
                if poll_deadline(&mut self.write_deadline, STUCK_AFTER, cx) {
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        };
        (self.writing, self.write_deadline) = (None, None);
        let Some(block) = self.blocks.iter_mut().rfind(|block| matches!(block, Block::Writing(..))) else {
            return Poll::Ready(Err(PeerError::Gone));
        };
        let Block::Writing(slot, data) = std::mem::replace(block, Block::Spooled(0)) else {
            return Poll::Ready(Err(PeerError::Gone));
        };
        let mut data = unshared(data);
        if is_written {
            *block = Block::Spooled(slot);
            data.clear();
            self.spare = Some(data);
        } else {
            *block = Block::Memory(MemoryBlock::whole(data));
            self.give_slot(slot);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the first block back from the spool.
    fn poll_read(&mut self, slot: Slot, cx: &mut Context<'_>) -> Poll<Result<(), PeerError>> {
        let reading = self.reading.get_or_insert_with(|| self.buffers.disk.read(slot, BLOCK_BYTES));
        let Poll::Ready(read) = Pin::new(reading).poll(cx) else {
            let is_late = poll_deadline(&mut self.read_deadline, READ_WAIT_MAX, cx);
            return if is_late { Poll::Ready(Err(PeerError::Slow)) } else { Poll::Pending };
        };
        (self.reading, self.read_deadline) = (None, None);
        let Ok(Ok(data)) = read else { return Poll::Ready(Err(PeerError::Gone)) };
        self.give_slot(slot);
        self.take_memory(Share::Unbounded, BLOCK_BYTES);
        self.blocks[0] = Block::Memory(MemoryBlock::whole(data));
        Poll::Ready(Ok(()))
    }

    fn give_memory(&mut self, bytes: usize) {
        self.memory_blocks -= 1;
        self.buffers.budget.give_memory(Some(self.client), bytes);
    }

    fn give_task(&mut self) {
        if std::mem::take(&mut self.is_task_charged) && self.task_bytes > 0 {
            self.buffers.budget.give_memory(Some(self.client), self.task_bytes);
        }
    }

    fn give_slot(&self, slot: Slot) {
        self.buffers.disk.give_slot(slot);
        self.buffers.budget.give_spool(self.client);
    }
}

impl Drop for Overflow<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Overflow<'_> {
    /// Frees everything: the client has left.
    pub(crate) fn clear(&mut self) {
        self.set_stalled(false);
        self.is_closed = true;
        (self.writing, self.write_deadline) = (None, None);
        (self.reading, self.read_deadline, self.sent) = (None, None, 0);
        for block in std::mem::take(&mut self.blocks) {
            match block {
                Block::Memory(block) => self.give_memory(block.charged),
                Block::Writing(slot, _) => {
                    self.give_slot(slot);
                    self.give_memory(BLOCK_BYTES);
                }
                Block::Spooled(slot) => self.give_slot(slot),
            }
        }
        if self.spare.take().is_some() {
            self.give_memory(BLOCK_BYTES);
        }
        debug_assert_eq!(self.memory_blocks, 0, "every block was given back");
        self.give_task();
    }
}

/// The bytes of a block that the helper thread has released. If it is stuck and still has them, this is a copy.
fn unshared(data: Arc<Vec<u8>>) -> Vec<u8> {
    Arc::try_unwrap(data).unwrap_or_else(|data| Vec::clone(&data))
}

/// A deadline for the disk.
type Deadline = Option<Pin<Box<Sleep>>>;

/// Whether the gate has waited this long for the disk. If not, the task is woken then.
fn poll_deadline(deadline: &mut Deadline, after: Duration, cx: &mut Context<'_>) -> bool {
    let is_over = deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(after))).as_mut().poll(cx).is_ready();
    if is_over {
        *deadline = None;
    }
    is_over
}

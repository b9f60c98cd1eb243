//! A bounded queue of lines in front of an output that may block, such as a pipe that is not read or a disk that hangs.
//! The access log and the log of the process use it.
//!
//! Threads append lines; one thread takes all of them at once and writes them. The lock is never held during a write,
//! so an output that hangs delays no other thread: the queue fills up, and further lines are dropped.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A chunk is all lines that the writer takes at once. Its buffer is reused; capacity above this is freed, in bytes.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// The lines that are not written yet.
#[derive(Debug)]
pub(crate) struct LineQueue {
    state: Mutex<LineQueueState>,
    /// Notified after every change of the state.
    changed: Condvar,
}

#[derive(Debug)]
struct LineQueueState {
    /// The lines that the writer has not taken yet.
    bytes: Vec<u8>,
    /// The number of lines in `bytes`.
    lines: u64,
    /// Size of the chunk that is being written, in bytes.
    bytes_in_write: usize,
    /// The number of lines in the chunk that is being written.
    lines_in_write: u64,
    /// Whether the writer must open the output again, for log rotation.
    is_reopen_due: bool,
    /// Whether the writer ends when `bytes` is empty.
    is_closed: bool,
    /// Whether the writer has ended.
    has_ended: bool,
}

/// The next task of the thread that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterTask {
    /// Write the chunk; it has this many lines.
    Write(u64),
    /// Open the output again.
    Reopen,
}

impl LineQueue {
    pub(crate) const fn new() -> Self {
        let state = LineQueueState {
            bytes: Vec::new(),
            lines: 0,
            bytes_in_write: 0,
            lines_in_write: 0,
            is_reopen_due: false,
            is_closed: false,
            has_ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Appends whole lines, `lines` in number, unless the unwritten ones would then exceed `bytes_max`. Returns whether
    /// it did.
    pub(crate) fn push(&self, bytes: &[u8], lines: u64, bytes_max: usize) -> bool {
        let mut state = self.state.lock();
        let fits = state.bytes.len() + state.bytes_in_write + bytes.len() <= bytes_max;
        if fits {
            state.bytes.extend_from_slice(bytes);
            state.lines += lines;
            self.changed.notify_all();
        }
        fits
    }

    /// Called by the thread that writes, in a loop: waits for its next task. The previous content of `chunk` counts as
    /// written; for [`WriterTask::Write`], `chunk` receives the lines to write. `None` when the queue is closed and
    /// empty.
    pub(crate) fn next(&self, chunk: &mut Vec<u8>) -> Option<WriterTask> {
        chunk.clear();
        chunk.shrink_to(SPARE_BYTES_MAX);
        let mut state = self.state.lock();
        (state.bytes_in_write, state.lines_in_write) = (0, 0);
        self.changed.notify_all();
        loop {
            if std::mem::take(&mut state.is_reopen_due) {
                return Some(WriterTask::Reopen);
            }
            if !state.bytes.is_empty() {
                std::mem::swap(&mut state.bytes, chunk);
                state.bytes_in_write = chunk.len();
                state.lines_in_write = std::mem::take(&mut state.lines);
                return Some(WriterTask::Write(state.lines_in_write));
            }
            if state.is_closed {
                state.has_ended = true;
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Makes the writer open the output again, before it writes further lines.
    pub(crate) fn reopen(&self) {
        self.state.lock().is_reopen_due = true;
        self.changed.notify_all();
    }

    /// Makes the writer end when all lines are written.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until all lines are written and, if the queue is closed, the writer has ended. If that takes longer than
    /// `timeout`, returns the number of lines that are not written. Part of the chunk being written may be, but counts.
    pub(crate) fn finish(&self, timeout: Duration) -> Result<(), u64> {
        let is_busy = |state: &mut LineQueueState| match state.is_closed {
            true => !state.has_ended,
            false => state.bytes_in_write > 0 || !state.bytes.is_empty(),
        };
        let mut state = self.state.lock();
        let waited = self.changed.wait_while_for(&mut state, is_busy, timeout);
        if waited.timed_out() { Err(state.lines + state.lines_in_write) } else { Ok(()) }
    }
}

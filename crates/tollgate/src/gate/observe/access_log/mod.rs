//! The access log: one line for each request, written by a thread of its own.
//!
//! ```text
//! exchange -> AccessRecord -> WorkerLog (one chunk per worker, no lock) -> LogWriter (bounded queue) -> thread
//! -> Output
//! ```
//!
//! A worker appends each line to its own chunk. It passes the chunk to the writer when it is full, and at every tick of
//! the worker (100 ms).

mod output;
mod writer;

use std::cell::RefCell;
use std::sync::Arc;

use tollgate_wire::log::AccessEntry;

pub(crate) use writer::{LogCounts, LogWriter};

use crate::settings::LogFormat;
use writer::Chunk;

/// A chunk of at least this size is passed on before the tick.
const CHUNK_BYTES: usize = 32 << 10;

/// The access log of one worker; none if it is off.
#[derive(Debug, Default)]
pub(crate) struct WorkerLog(RefCell<Option<OpenLog>>);

#[derive(Debug)]
struct OpenLog {
    writer: Arc<LogWriter>,
    chunk: Chunk,
}

impl WorkerLog {
    /// Whether requests are logged.
    pub(crate) fn is_on(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Appends a line.
    pub(crate) fn write(&self, entry: &AccessEntry<'_>) {
        let mut open = self.0.borrow_mut();
        let Some(OpenLog { writer, chunk }) = &mut *open else { return };
        match writer.settings.format {
            LogFormat::Combined => entry.write_combined(&mut chunk.bytes),
            LogFormat::Json => entry.write_json(&mut chunk.bytes),
        }
        chunk.lines += 1;
        if chunk.bytes.len() >= CHUNK_BYTES {
            writer.take(chunk);
        }
    }

    /// Passes the lines on to the current writer, and uses `writer` from now on, which a reload may have replaced.
    pub(crate) fn tick(&self, writer: Option<&Arc<LogWriter>>) {
        let mut open = self.0.borrow_mut();
        if let Some(OpenLog { writer, chunk }) = &mut *open {
            writer.take(chunk);
        }
        if open.as_ref().map(|open| Arc::as_ptr(&open.writer)) != writer.map(Arc::as_ptr) {
            *open = writer.map(|writer| OpenLog { writer: writer.clone(), chunk: Chunk::default() });
        }
    }
}

/// The last lines of a worker are not lost.
impl Drop for WorkerLog {
    fn drop(&mut self) {
        self.tick(None);
    }
}

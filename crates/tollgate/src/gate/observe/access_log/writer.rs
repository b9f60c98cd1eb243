//! The thread that writes an access log, and the bounded queue in front of it.
//!
//! Workers pass chunks of whole lines. The lock of the queue is taken once per chunk and never held during a write, so
//! a disk or a syslog daemon that hangs delays no request: the queue fills up, and further chunks are dropped and
//! counted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::output::{Lost, Output};
use crate::settings::{AccessLog as Settings, LogFormat};

/// Empty chunks that are kept for reuse.
const SPARE_CHUNKS_MAX: usize = 16;
/// The longest wait for the last lines at the end of the gate.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);
/// The interval of reports about dropped lines in the log of the gate.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Counters over the life of the gate, whatever the settings.
#[derive(Debug, Default)]
pub(crate) struct LogCounts {
    written: AtomicU64,
    dropped: AtomicU64,
}

impl LogCounts {
    /// Lines written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Lines dropped because the buffer was full or the destination failed.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A chunk of whole lines.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
}

/// The access log under one version of the settings.
#[derive(Debug)]
pub(crate) struct LogWriter {
    settings: Settings,
    queue: Arc<LogQueue>,
}

#[derive(Debug)]
struct LogQueue {
    state: Mutex<LogQueueState>,
    changed: Condvar,
    counts: Arc<LogCounts>,
}

#[derive(Debug, Default)]
struct LogQueueState {
    chunks: VecDeque<Chunk>,
    spare: Vec<Vec<u8>>,
    /// Bytes in `chunks` and in the chunk that is being written.
    bytes: usize,
    is_reopening: bool,
    is_closed: bool,
    has_ended: bool,
}

impl LogQueue {
    fn lock(&self) -> MutexGuard<'_, LogQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogWriter {
    /// Opens the destination and starts the thread.
    pub(crate) fn open(settings: &Settings, counts: &Arc<LogCounts>) -> io::Result<Arc<Self>> {
        let output = Output::open(&settings.output)?;
        let queue = Arc::new(LogQueue { state: Mutex::default(), changed: Condvar::new(), counts: counts.clone() });
        let written = queue.clone();
        thread::Builder::new().name("tollgate-access".to_owned()).spawn(move || run(&written, output))?;
        Ok(Arc::new(Self { settings: settings.clone(), queue }))
    }

    /// Whether it corresponds to `settings`.
    pub(crate) fn is_for(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    /// The format of the lines.
    pub(super) fn format(&self) -> LogFormat {
        self.settings.format
    }

    /// Takes a chunk, or drops it if the buffer is full. Leaves an empty chunk. Never waits for the destination.
    pub(super) fn take(&self, chunk: &mut Chunk) {
        if chunk.lines == 0 {
            return;
        }
        let mut state = self.queue.lock();
        if state.bytes + chunk.bytes.len() > self.settings.buffer_bytes_max {
            drop(state);
            self.queue.counts.dropped.fetch_add(chunk.lines, Ordering::Relaxed);
            chunk.bytes.clear();
            chunk.lines = 0;
            return;
        }
        state.bytes += chunk.bytes.len();
        let spare = state.spare.pop().unwrap_or_default();
        state.chunks.push_back(std::mem::replace(chunk, Chunk { bytes: spare, lines: 0 }));
        drop(state);
        self.queue.changed.notify_all();
    }

    /// Opens the destination again before the next write.
    pub(crate) fn reopen(&self) {
        self.queue.lock().is_reopening = true;
        self.queue.changed.notify_all();
    }

    /// Waits a short time until everything is written. Call it when no more requests are served.
    pub(crate) fn end(&self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        self.queue.changed.notify_all();
        let waited = self.queue.changed.wait_timeout_while(state, LAST_WRITE_MAX, |state| !state.has_ended);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let lines: u64 = state.chunks.iter().map(|chunk| chunk.lines).sum();
            tracing::warn!(lines, "the destination of the access log hangs: the last lines are not written");
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}

fn run(queue: &LogQueue, mut output: Output) {
    let mut report = DropReport::new(queue.counts.dropped());
    let mut state = queue.lock();
    loop {
        if std::mem::take(&mut state.is_reopening) {
            drop(state);
            match output.reopen() {
                Ok(()) => tracing::info!("the access log was reopened"),
                Err(error) => tracing::error!(%error, "the access log cannot be reopened; the old file stays in use"),
            }
            state = queue.lock();
            continue;
        }
        if let Some(Chunk { mut bytes, lines }) = state.chunks.pop_front() {
            drop(state);
            let written = output.write(&bytes, lines);
            let lost = written.as_ref().err().map_or(0, |lost| lost.lines);
            queue.counts.written.fetch_add(lines - lost, Ordering::Relaxed);
            queue.counts.dropped.fetch_add(lost, Ordering::Relaxed);
            report.look(queue.counts.dropped(), written.err(), Instant::now());
            state = queue.lock();
            state.bytes -= bytes.len();
            bytes.clear();
            if state.spare.len() < SPARE_CHUNKS_MAX {
                state.spare.push(bytes);
            }
            continue;
        }
        if state.is_closed {
            state.has_ended = true;
            queue.changed.notify_all();
            return;
        }
        state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Reports dropped lines in the log of the gate: at once, and then at most once a minute.
struct DropReport {
    reported: u64,
    at: Option<Instant>,
}

impl DropReport {
    fn new(dropped: u64) -> Self {
        Self { reported: dropped, at: None }
    }

    /// Whether a report is due, and the number of lines that it is about.
    fn due(&mut self, dropped: u64, now: Instant) -> Option<u64> {
        let lines = dropped - self.reported;
        if lines == 0 || self.at.is_some_and(|at| now.duration_since(at) < REPORT_EVERY) {
            return None;
        }
        (self.reported, self.at) = (dropped, Some(now));
        Some(lines)
    }

    fn look(&mut self, dropped: u64, lost: Option<Lost>, now: Instant) {
        let Some(lines) = self.due(dropped, now) else { return };
        let error = lost.map(|lost| tracing::field::display(lost.error));
        tracing::warn!(lines, error, "access log lines were dropped: the destination does not keep up or fails");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LogOutput;

    #[test]
    fn drops_are_reported_at_once_and_then_at_most_once_a_minute() {
        let (mut report, start) = (DropReport::new(5), Instant::now());
        assert_eq!(report.due(5, start), None);
        assert_eq!(report.due(8, start), Some(3));
        assert_eq!(report.due(9, start + REPORT_EVERY / 2), None);
        assert_eq!(report.due(9, start + REPORT_EVERY), Some(1));
        assert_eq!(report.due(9, start + REPORT_EVERY * 3), None);
    }

    /// Nothing reads the pipe, so the thread blocks in its first large write.
    #[test]
    fn a_destination_that_hangs_delays_no_request_and_dropped_lines_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let counts = Arc::new(LogCounts::default());
        let settings =
            Settings { output: LogOutput::File(path), format: LogFormat::Combined, buffer_bytes_max: 1 << 20 };
        let writer = LogWriter::open(&settings, &counts).unwrap();
        let started = Instant::now();
        for _ in 0..100 {
            let mut chunk = Chunk { bytes: vec![b'x'; 64 << 10], lines: 10 };
            writer.take(&mut chunk);
            assert_eq!(chunk.lines, 0);
        }
        assert!(started.elapsed() < Duration::from_secs(1));
        // A pipe takes 64 KiB, so one or two chunks have gone from the buffer.
        let dropped = counts.dropped();
        assert!((800..=840).contains(&dropped), "{dropped}");
        assert!(writer.queue.lock().bytes <= 1 << 20);
        drop(reader);
        writer.end();
    }
}

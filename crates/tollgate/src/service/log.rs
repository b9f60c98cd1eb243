//! The event log: text on a terminal, JSON otherwise.
//!
//! A separate thread writes to standard error, which may be a pipe that is not read: a write to it blocks, and would
//! stop the thread that logs. Lines pass through a queue of bounded size. When it is full, or a write fails, lines are
//! dropped and counted. Their number is logged after the next successful write.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus_client::collector::Collector;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::metric::{collector, counter};

/// Maximum size of the lines in the queue, in bytes: several thousand lines.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Capacity of a written chunk that is kept for reuse, in bytes.
const SPARE_BYTES_MAX: usize = 64 << 10;
/// The longest wait for the last lines when the process ends.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// The queue of the process.
static QUEUE: LineQueue = LineQueue::new();

/// Starts logging to standard error. `TOLLGATE_LOG` sets the level, such as `debug` or `warn`. The last lines are
/// written when the result is dropped.
pub(super) fn start() -> LastLines {
    let filter = std::env::var("TOLLGATE_LOG").ok().and_then(|levels| levels.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    // The subscriber would report its errors with `eprintln!`, which panics if standard error fails.
    let log = tracing_subscriber::fmt()
        // The filter decides.
        .with_max_level(LevelFilter::TRACE)
        .with_writer(|| &QUEUE)
        .log_internal_errors(false)
        .with_target(false);
    if io::stderr().is_terminal() {
        log.finish().with(filter).init()
    } else {
        log.json().flatten_event(true).finish().with(filter).init()
    }
    let run = || {
        QUEUE.run(io::stderr(), |lines| {
            tracing::warn!(lines, "log lines were dropped: standard error was not read, or writing to it failed");
        });
    };
    if let Err(error) = thread::Builder::new().name("tollgate-log".to_owned()).spawn(run) {
        QUEUE.lock().is_direct = true;
        tracing::warn!(%error, "the log has no thread of its own: requests wait if standard error is not read");
    }
    LastLines
}

/// Waits a short time until all lines are written. Call it before the process ends.
pub(super) fn finish() {
    QUEUE.finish(LAST_WRITE_MAX);
}

/// Writes the last lines of the log when it is dropped.
pub(super) struct LastLines;

impl Drop for LastLines {
    fn drop(&mut self) {
        finish();
    }
}

/// Lines between the threads that log and the thread that writes.
struct LineQueue {
    state: Mutex<LineQueueState>,
    has_lines: Condvar,
    is_written: Condvar,
    /// Lines that were not written.
    dropped: AtomicU64,
}

struct LineQueueState {
    bytes: Vec<u8>,
    lines: u64,
    is_writing: bool,
    /// Whether lines are written by the thread that logs them.
    is_direct: bool,
}

impl LineQueue {
    const fn new() -> Self {
        Self {
            state: Mutex::new(LineQueueState { bytes: Vec::new(), lines: 0, is_writing: false, is_direct: false }),
            has_lines: Condvar::new(),
            is_written: Condvar::new(),
            dropped: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LineQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_dropped(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Queues a line, or drops it if the queue is full. Never waits for a write.
    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.is_direct {
            drop(state);
            if io::stderr().write_all(line).is_err() {
                self.count_dropped(1);
            }
        } else if state.bytes.len() + line.len() > QUEUE_BYTES_MAX {
            self.count_dropped(1);
        } else {
            state.bytes.extend_from_slice(line);
            state.lines += 1;
            self.has_lines.notify_one();
        }
    }

    /// Writes lines to `output` until the process ends. Calls `report` with the number of lines that were dropped before
    /// a successful write.
    fn run(&self, mut output: impl Write, report: impl Fn(u64)) {
        let (mut chunk, mut reported) = (Vec::new(), 0);
        loop {
            let state = self.has_lines.wait_while(self.lock(), |state| state.bytes.is_empty());
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut state.bytes, &mut chunk);
            let lines = std::mem::take(&mut state.lines);
            state.is_writing = true;
            drop(state);
            if output.write_all(&chunk).is_err() {
                self.count_dropped(lines);
            } else {
                let dropped = self.dropped.load(Ordering::Relaxed);
                if dropped > reported {
                    report(dropped - reported);
                    reported = dropped;
                }
            }
            chunk.clear();
            chunk.shrink_to(SPARE_BYTES_MAX);
            self.lock().is_writing = false;
            self.is_written.notify_all();
        }
    }

    /// Waits until all lines are written, for at most `timeout`.
    fn finish(&self, timeout: Duration) {
        let is_busy = |state: &mut LineQueueState| state.is_writing || !state.bytes.is_empty();
        drop(self.is_written.wait_timeout_while(self.lock(), timeout, is_busy));
    }
}

impl Write for &LineQueue {
    /// The subscriber writes each line with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The metrics of the log.
pub(super) fn log_metrics() -> Box<dyn Collector> {
    collector(|encoder| {
        let help = "Lines of the event log that were dropped because standard error is not read or fails";
        counter(encoder, "tollgate_log_dropped", help, QUEUE.dropped.load(Ordering::Relaxed))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    /// A line of a thousand bytes.
    const LINE: &[u8; 1000] = &{
        let mut line = [b'x'; 1000];
        line[999] = b'\n';
        line
    };

    /// Starts the thread of a queue. The numbers of dropped lines that it reports arrive at the receiver.
    fn started(output: impl Write + Send + 'static) -> (Arc<LineQueue>, mpsc::Receiver<u64>) {
        let queue = Arc::new(LineQueue::new());
        let (running, (sender, reports)) = (queue.clone(), mpsc::channel());
        thread::spawn(move || running.run(output, |lines| _ = sender.send(lines)));
        (queue, reports)
    }

    #[test]
    fn a_pipe_that_is_not_read_blocks_no_thread_and_every_line_is_written_or_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let (queue, reports) = started(writer);
        for _ in 0..3000 {
            queue.push(LINE);
        }
        assert!(queue.lock().bytes.len() <= QUEUE_BYTES_MAX);
        let dropped = queue.dropped.load(Ordering::Relaxed);
        assert!((700..2000).contains(&dropped), "{dropped}");
        let written = 3000 - dropped;
        let lines = BufReader::new(reader).lines().take(usize::try_from(written).unwrap());
        assert!(lines.map_while(Result::ok).all(|line| line.len() == 999));
        let mut reported = 0;
        while reported < dropped {
            reported += reports.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert_eq!(reported, dropped);
        queue.finish(Duration::from_secs(60));
        assert_eq!(queue.lock().lines, 0);
    }

    #[test]
    fn the_end_waits_for_the_last_line_but_not_for_a_pipe_that_is_not_read() {
        let (reader, writer) = io::pipe().unwrap();
        let (queue, _reports) = started(writer);
        queue.push(LINE);
        queue.finish(Duration::from_secs(60));
        assert_eq!(BufReader::new(reader.try_clone().unwrap()).lines().next().unwrap().unwrap().len(), 999);
        for _ in 0..1000 {
            queue.push(LINE);
        }
        queue.finish(Duration::from_millis(50));
        assert!(queue.lock().is_writing);
        drop(reader);
        queue.finish(Duration::from_secs(60));
        // The reader has ended, so the lines are lost.
        assert!(queue.dropped.load(Ordering::Relaxed) > 0);
    }
}

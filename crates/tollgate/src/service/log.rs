//! The event log of a role, on standard error: text on a terminal, JSON otherwise.
//!
//! A separate thread writes to standard error, which may be a pipe that is not read: a write to it blocks, and would
//! stop the thread that logs. When the queue of that thread is full, or a write fails, lines are dropped and counted.
//! Their number is logged after the next successful write.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use prometheus_client::collector::Collector;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::line_queue::{LineQueue, WriterTask};
use crate::metric::{collector, counter};

/// Maximum size of the unwritten lines, in bytes: several thousand lines.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The longest wait for the last lines when the process ends.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// The log of the process.
static LOG: EventLog = EventLog::new();

/// Starts logging to standard error. `TOLLGATE_LOG` sets the level, such as `debug` or `warn`. The last lines are
/// written when the result is dropped.
pub(super) fn start() -> LastLines {
    let filter = std::env::var("TOLLGATE_LOG").ok().and_then(|levels| levels.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let log = tracing_subscriber::fmt()
        // The filter decides.
        .with_max_level(LevelFilter::TRACE)
        .with_writer(|| &LOG)
        // The subscriber would report its errors with `eprintln!`, which panics if standard error fails.
        .log_internal_errors(false)
        .with_target(false);
    if io::stderr().is_terminal() {
        log.finish().with(filter).init()
    } else {
        log.json().flatten_event(true).finish().with(filter).init()
    }
    let run = || {
        LOG.run(io::stderr(), |lines| {
            tracing::warn!(lines, "log lines were dropped: standard error was not read, or writing to it failed");
        });
    };
    if let Err(error) = thread::Builder::new().name("tollgate-log".to_owned()).spawn(run) {
        LOG.is_direct.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "the log has no thread of its own: requests wait if standard error is not read");
    }
    LastLines
}

/// Waits a short time until all lines are written. Call it before the process ends.
pub(super) fn finish() {
    let _ = LOG.queue.finish(LAST_WRITE_MAX);
}

/// Writes the last lines of the log when it is dropped.
pub(super) struct LastLines;

impl Drop for LastLines {
    fn drop(&mut self) {
        finish();
    }
}

struct EventLog {
    queue: LineQueue,
    /// Lines that were not written.
    dropped: AtomicU64,
    /// Whether lines are written by the thread that logs them, because the log's own thread could not be started.
    is_direct: AtomicBool,
}

impl EventLog {
    const fn new() -> Self {
        Self { queue: LineQueue::new(), dropped: AtomicU64::new(0), is_direct: AtomicBool::new(false) }
    }

    /// Writes lines to `output` until the process ends. Calls `report` with the number of lines that were dropped
    /// before a successful write.
    fn run(&self, mut output: impl Write, report: impl Fn(u64)) {
        let (mut chunk, mut reported) = (Vec::new(), 0);
        while let Some(WriterTask::Write(lines)) = self.queue.next(&mut chunk) {
            if output.write_all(&chunk).is_err() {
                self.dropped.fetch_add(lines, Ordering::Relaxed);
                continue;
            }
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > reported {
                report(dropped - reported);
                reported = dropped;
            }
        }
    }
}

impl Write for &EventLog {
    /// The subscriber writes each line with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_taken = match self.is_direct.load(Ordering::Relaxed) {
            true => io::stderr().write_all(line).is_ok(),
            false => self.queue.push(line, 1, QUEUE_BYTES_MAX),
        };
        self.dropped.fetch_add(u64::from(!is_taken), Ordering::Relaxed);
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
        counter(encoder, "tollgate_log_dropped", help, LOG.dropped.load(Ordering::Relaxed))
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
    fn started(output: impl Write + Send + 'static) -> (Arc<EventLog>, mpsc::Receiver<u64>) {
        let log = Arc::new(EventLog::new());
        let (running, (sender, reports)) = (log.clone(), mpsc::channel());
        thread::spawn(move || running.run(output, |lines| _ = sender.send(lines)));
        (log, reports)
    }

    #[test]
    fn a_pipe_that_is_not_read_blocks_no_thread_and_every_line_is_written_or_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let (log, reports) = started(writer);
        for _ in 0..3000 {
            (&*log).write_all(LINE).unwrap();
        }
        let dropped = log.dropped.load(Ordering::Relaxed);
        // The queue holds 1,048 lines, and the pipe 65.
        assert!((1886..=1952).contains(&dropped), "{dropped}");
        let written = 3000 - dropped;
        let lines = BufReader::new(reader).lines().take(usize::try_from(written).unwrap());
        assert!(lines.map_while(Result::ok).all(|line| line.len() == 999));
        let mut reported = 0;
        while reported < dropped {
            reported += reports.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert_eq!(reported, dropped);
        assert_eq!(log.queue.finish(Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn the_end_waits_for_the_last_line_but_not_for_a_pipe_that_is_not_read() {
        let (reader, writer) = io::pipe().unwrap();
        let (log, _reports) = started(writer);
        (&*log).write_all(LINE).unwrap();
        assert_eq!(log.queue.finish(Duration::from_secs(60)), Ok(()));
        assert_eq!(BufReader::new(reader.try_clone().unwrap()).lines().next().unwrap().unwrap().len(), 999);
        for _ in 0..1000 {
            (&*log).write_all(LINE).unwrap();
        }
        assert!(log.queue.finish(Duration::from_millis(50)).is_err());
        drop(reader);
        assert_eq!(log.queue.finish(Duration::from_secs(60)), Ok(()));
        // The reader has ended, so the lines are lost.
        assert!(log.dropped.load(Ordering::Relaxed) > 0);
    }
}

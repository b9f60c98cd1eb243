//! The thread that writes an access log. Workers pass chunks of whole lines to its bounded queue, and lines that do not
//! fit are dropped, so that a destination that hangs delays no request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::output::{Lost, Output};
use crate::line_queue::{LineQueue, WriterTask};
use crate::settings::AccessLog as Settings;

/// The longest wait for the last lines at the end of the gate.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);
/// The interval of reports about dropped lines in the log of the gate.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Counters over the life of the gate. A reload that replaces the writer does not reset them.
#[derive(Debug, Default)]
pub(crate) struct LogCounts {
    /// Lines written.
    pub(crate) written: AtomicU64,
    /// Lines dropped because the buffer was full or the destination failed.
    pub(crate) dropped: AtomicU64,
}

/// A chunk of whole lines.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: u64,
}

/// The access log with one set of settings. A reload that changes them opens another one.
#[derive(Debug)]
pub(crate) struct LogWriter {
    pub(crate) settings: Settings,
    queue: Arc<LineQueue>,
    counts: Arc<LogCounts>,
}

impl LogWriter {
    /// Opens the destination and starts the thread.
    pub(crate) fn open(settings: &Settings, counts: &Arc<LogCounts>) -> io::Result<Arc<Self>> {
        let output = Output::open(&settings.output)?;
        let queue = Arc::new(LineQueue::new());
        let (lines, counted) = (queue.clone(), counts.clone());
        thread::Builder::new().name("tollgate-access".to_owned()).spawn(move || run(&lines, output, &counted))?;
        Ok(Arc::new(Self { settings: settings.clone(), queue, counts: counts.clone() }))
    }

    /// Takes the lines of a chunk and leaves it empty. Drops them if the queue is full.
    pub(super) fn take(&self, chunk: &mut Chunk) {
        if chunk.lines > 0 && !self.queue.push(&chunk.bytes, chunk.lines, self.settings.buffer_bytes_max) {
            self.counts.dropped.fetch_add(chunk.lines, Ordering::Relaxed);
        }
        chunk.bytes.clear();
        chunk.lines = 0;
    }

    /// Opens the file again, for log rotation.
    pub(crate) fn reopen(&self) {
        self.queue.reopen();
    }

    /// Writes the last lines, and waits for that up to [`LAST_WRITE_MAX`].
    pub(crate) fn end(&self) {
        self.queue.close();
        if let Err(lines) = self.queue.finish(LAST_WRITE_MAX) {
            tracing::warn!(lines, "the destination of the access log hangs: the last lines are not written");
        }
    }
}

/// Closes the queue. The thread ends when it has written the rest.
impl Drop for LogWriter {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The thread.
fn run(queue: &LineQueue, mut output: Output, counts: &LogCounts) {
    let (mut report, mut chunk) =
        (DropReport { reported: counts.dropped.load(Ordering::Relaxed), at: None }, Vec::new());
    while let Some(task) = queue.next(&mut chunk) {
        match task {
            WriterTask::Reopen => match output.reopen() {
                Ok(()) => tracing::info!("the access log was reopened"),
                Err(error) => tracing::error!(%error, "the access log cannot be reopened; the old file stays in use"),
            },
            WriterTask::Write(lines) => {
                let written = output.write(&chunk, lines);
                let lost = written.as_ref().err().map_or(0, |lost| lost.lines);
                counts.written.fetch_add(lines - lost, Ordering::Relaxed);
                let dropped = counts.dropped.fetch_add(lost, Ordering::Relaxed) + lost;
                report.look(dropped, written.err(), Instant::now());
            }
        }
    }
}

/// Reports dropped lines in the log of the gate: at once, and then at most once a minute.
struct DropReport {
    /// The number of dropped lines at the last report.
    reported: u64,
    /// The time of the last report.
    at: Option<Instant>,
}

impl DropReport {
    /// The number of lines to report; none if no report is due.
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
    use crate::settings::{LogFormat, LogOutput};

    #[test]
    fn drops_are_reported_at_once_and_then_at_most_once_a_minute() {
        let (mut report, start) = (DropReport { reported: 5, at: None }, Instant::now());
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
        let dropped = counts.dropped.load(Ordering::Relaxed);
        assert!((800..=840).contains(&dropped), "{dropped}");
        let unwritten = writer.queue.finish(Duration::from_millis(100));
        assert_eq!(unwritten, Err(1000 - dropped - counts.written.load(Ordering::Relaxed)));
        drop(reader);
        writer.end();
    }
}

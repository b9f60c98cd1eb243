//! Reads the files of a reload on a separate thread.
//!
//! The main thread serves the admin address, receives signals and sends the heartbeat to systemd. A file on a disk that
//! hangs, or a pipe without a writer, must not block it. Therefore a plan (the settings of a role) is read on another
//! thread, and the reload fails if that takes too long. The thread is then abandoned, and no other is started before it
//! ends.

use std::future::pending;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Longest time to read the files of a reload.
const READ_MAX: Duration = Duration::from_secs(5);

/// A function that reads a plan of type `T`. Its error is a message for the operator.
type Read<T> = Box<dyn FnOnce() -> Result<T, String> + Send>;

/// Reads plans, one at a time.
pub(super) struct Planning<T> {
    /// The read in progress, and its deadline.
    awaited: Option<(oneshot::Receiver<Result<T, String>>, Instant)>,
    /// A read to start after the current one, because files may have changed since that began.
    queued: Option<Read<T>>,
    /// Longest time for a read.
    read_max: Duration,
    /// A thread that was abandoned, because its read took longer than `read_max`.
    stuck: Option<thread::JoinHandle<()>>,
    /// The thread of the current or the last read.
    thread: Option<thread::JoinHandle<()>>,
}

impl<T> Default for Planning<T> {
    fn default() -> Self {
        Self { awaited: None, queued: None, read_max: READ_MAX, stuck: None, thread: None }
    }
}

impl<T: Send + 'static> Planning<T> {
    /// Starts reading a plan. If a read is in progress, this one starts after it, and replaces its result.
    pub(super) fn begin(&mut self, read: impl FnOnce() -> Result<T, String> + Send + 'static) {
        if self.awaited.is_some() {
            self.queued = Some(Box::new(read));
        } else {
            self.start(Box::new(read));
        }
    }

    fn start(&mut self, read: Read<T>) {
        let (sender, receiver) = oneshot::channel();
        self.awaited = Some((receiver, Instant::now() + self.read_max));
        self.stuck.take_if(|stuck| stuck.is_finished());
        if self.stuck.is_some() {
            let _ = sender.send(Err("the files of the last reload are still being read: the disk may hang".to_owned()));
            return;
        }
        let act = move || drop(sender.send(read()));
        self.thread = thread::Builder::new().name("tollgate-reload".to_owned()).spawn(act).ok();
    }

    /// Waits for the last read and returns its result; pending if there is none. Cancel-safe.
    pub(super) async fn finished(&mut self) -> Result<T, String> {
        loop {
            let Some((receiver, until)) = &mut self.awaited else { return pending().await };
            let planned = match tokio::time::timeout_at(*until, receiver).await {
                Ok(planned) => planned.unwrap_or_else(|_| Err("the settings could not be read".to_owned())),
                Err(_) => {
                    (self.stuck, self.queued) = (self.thread.take(), None);
                    Err(format!(
                        "the settings and the files that they name were not read within {:?}: the disk may hang",
                        self.read_max
                    ))
                }
            };
            self.awaited = None;
            match self.queued.take() {
                Some(read) => self.start(read),
                None => return planned,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_read_that_hangs_is_abandoned_and_no_other_starts_before_it_ends() {
        let mut planning = Planning { read_max: Duration::from_millis(20), ..Planning::default() };
        let (end, hangs) = mpsc::channel::<()>();
        planning.begin(move || {
            let _ = hangs.recv();
            Ok(1)
        });
        assert!(planning.finished().await.unwrap_err().contains("within 20ms"));
        planning.begin(|| Ok(2));
        assert!(planning.finished().await.unwrap_err().contains("still being read"));
        drop(end);
        while !planning.stuck.as_ref().is_some_and(thread::JoinHandle::is_finished) {
            thread::yield_now();
        }
        planning.read_max = READ_MAX;
        planning.begin(|| Ok(3));
        assert_eq!(planning.finished().await, Ok(3));
    }

    #[tokio::test]
    async fn a_reload_during_a_read_reads_again() {
        let mut planning = Planning::default();
        let (begin, begun) = mpsc::channel::<()>();
        planning.begin(move || {
            let _ = begun.recv();
            Ok(1)
        });
        planning.begin(|| Ok(2));
        drop(begin);
        assert_eq!(planning.finished().await, Ok(2));
    }
}

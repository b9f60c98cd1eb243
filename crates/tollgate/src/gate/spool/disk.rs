//! The spool file, and the thread that reads and writes it.
//!
//! A worker serves many connections on one thread, so it must not wait for a disk. All workers share one helper thread and one file without a name,
//! which disappears with the process. The file consists of slots of one block each. Jobs are done in their order, so a slot that is freed
//! while its last job is still waiting can be used for the next block at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::BLOCK_BYTES;

/// Blocks that may wait to be written, for all workers together: 16 MiB. Each read has a download that waits for it.
const WRITES_MAX: usize = 256;
/// How long the spool is not used after an error.
const RETRY: Duration = Duration::from_secs(30);

/// The number of a slot in the file.
pub(super) type Slot = u32;

/// A block that was to be written, and whether it was.
pub(super) type Written = (Vec<u8>, bool);

/// The spool file.
pub(super) struct Disk {
    jobs: Sender<Job>,
    slots: Mutex<Slots>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_usable: AtomicBool,
    writes: AtomicUsize,
}

#[derive(Default)]
struct Slots {
    free: Vec<Slot>,
    /// The first slot that was never used.
    next: Slot,
}

enum Job {
    Write(Slot, Vec<u8>, oneshot::Sender<Written>),
    Read(Slot, usize, oneshot::Sender<io::Result<Vec<u8>>>),
    Trim,
}

impl Disk {
    /// A spool in this directory. Its file is created by the helper thread.
    pub(super) fn new(dir: PathBuf) -> io::Result<Self> {
        let (jobs, waiting) = channel();
        let state = Arc::new(State::default());
        let worker = Worker { dir, file: None, state: state.clone(), has_logged: false };
        std::thread::Builder::new().name("gate-spool".into()).spawn(move || worker.run(&waiting))?;
        Ok(Self { jobs, slots: Mutex::default(), state })
    }

    /// Whether blocks can be written, as far as is known.
    pub(super) fn is_usable(&self) -> bool {
        self.state.is_usable.load(Ordering::Relaxed)
    }

    /// A slot that is not in use.
    pub(super) fn take_slot(&self) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.free.pop().unwrap_or_else(|| {
            slots.next += 1;
            slots.next - 1
        })
    }

    /// Frees a slot. When none is in use, the file gives its space back.
    pub(super) fn give_slot(&self, slot: Slot) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.free.push(slot);
        if slots.free.len() == slots.next as usize {
            *slots = Slots::default();
            let _ = self.jobs.send(Job::Trim);
        }
    }

    /// Starts to write a block. Gives it back if too many are waiting.
    pub(super) fn write(&self, slot: Slot, block: Vec<u8>) -> Result<oneshot::Receiver<Written>, Vec<u8>> {
        if self.state.writes.fetch_add(1, Ordering::Relaxed) >= WRITES_MAX {
            self.state.writes.fetch_sub(1, Ordering::Relaxed);
            return Err(block);
        }
        let (done, written) = oneshot::channel();
        match self.jobs.send(Job::Write(slot, block, done)) {
            Ok(()) => Ok(written),
            Err(error) => match error.0 {
                Job::Write(_, block, _) => Err(block),
                Job::Read(..) | Job::Trim => unreachable!("it was a write"),
            },
        }
    }

    /// Starts to read a block of so many bytes.
    pub(super) fn read(&self, slot: Slot, bytes: usize) -> oneshot::Receiver<io::Result<Vec<u8>>> {
        let (done, read) = oneshot::channel();
        // If the thread has ended, `done` is dropped and the reader is told.
        let _ = self.jobs.send(Job::Read(slot, bytes, done));
        read
    }
}

/// The helper thread. It ends when the [`Disk`] is dropped; nobody waits for it, because a disk may hang.
struct Worker {
    dir: PathBuf,
    file: Option<File>,
    state: Arc<State>,
    /// Whether the error that lasts is in the log.
    has_logged: bool,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>) {
        self.open();
        loop {
            let job = if self.state.is_usable.load(Ordering::Relaxed) {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                jobs.recv_timeout(RETRY)
            };
            match job {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.open(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Creates the file if there is none. One that could not be written is tried again: it may hold blocks.
    fn open(&mut self) {
        if self.file.is_none() {
            match tempfile::tempfile_in(&self.dir) {
                Ok(file) => self.file = Some(file),
                Err(error) => return self.failed(&error),
            }
        }
        self.state.is_usable.store(true, Ordering::Relaxed);
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Write(slot, block, done) => {
                self.state.writes.fetch_sub(1, Ordering::Relaxed);
                // The client has left.
                if done.is_closed() {
                    return;
                }
                let written = self.file().and_then(|file| file.write_all_at(&block, offset(slot)));
                match &written {
                    Ok(()) => self.has_logged = false,
                    Err(error) => self.failed(error),
                }
                let _ = done.send((block, written.is_ok()));
            }
            Job::Read(slot, bytes, done) => {
                if done.is_closed() {
                    return;
                }
                let mut block = vec![0; bytes];
                let read = self.file().and_then(|file| file.read_exact_at(&mut block, offset(slot)));
                if let Err(error) = &read {
                    self.failed(error);
                }
                let _ = done.send(read.map(|()| block));
            }
            Job::Trim => {
                if let Some(file) = &self.file {
                    let _ = file.set_len(0);
                }
            }
        }
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn failed(&mut self, error: &io::Error) {
        self.state.is_usable.store(false, Ordering::Relaxed);
        if !std::mem::replace(&mut self.has_logged, true) {
            let dir: &Path = &self.dir;
            tracing::warn!(dir = %dir.display(), %error, "responses cannot be spooled; slow clients may hold the backend");
        }
    }
}

fn offset(slot: Slot) -> u64 {
    u64::from(slot) * BLOCK_BYTES as u64
}

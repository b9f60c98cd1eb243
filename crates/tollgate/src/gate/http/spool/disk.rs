//! The spool file, and the thread that reads and writes it. The file buffers responses whose clients read slowly.
//!
//! A worker serves many connections on one thread, so it must not wait for a disk. All workers share one helper thread
//! and one unlinked file, which disappears with the process. The file consists of slots of one block each. Jobs are
//! done in order, so a slot that is freed while its last job is waiting can be used for the next block at once.
//!
//! A block stays in memory until it has been written: the job has a weak reference to it. If jobs wait and none ends
//! for [`STUCK_AFTER`], the disk is stuck: an [`Overflow`](super::Overflow), the buffer of one response, takes back its
//! block that waits and starts no further write until a job ends. Reads are still queued, because their blocks are only
//! in the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::BLOCK_BYTES;

/// Blocks that may wait to be written, for all workers together: 16 MiB. Reads need no limit: a response waits for one
/// read at a time.
const WRITES_MAX: usize = 256;
/// The time for which the spool is not used after an error.
const RETRY: Duration = Duration::from_secs(30);
/// The time without the end of a job after which the disk counts as stuck. Writing a block takes less than a
/// millisecond on most disks, and some hundred milliseconds on a busy one.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(2);

/// The number of a slot in the file.
pub(super) type Slot = u32;

/// The spool file.
pub(super) struct Disk {
    jobs: Sender<Job>,
    slots: Mutex<FileSlots>,
    state: Arc<DiskState>,
}

struct DiskState {
    dir: PathBuf,
    /// Whether the file exists, and no read or write has failed since [`DiskWorker::open`] last succeeded.
    is_usable: AtomicBool,
    /// Blocks that wait to be written.
    writes: AtomicUsize,
    began: Instant,
    /// Jobs that have not ended.
    jobs: AtomicUsize,
    /// The time when the last job ended, or the first waiting one was queued, in milliseconds after `began`.
    progressed_ms: AtomicU64,
    /// Whether the current error is in the log.
    has_logged: AtomicBool,
}

#[derive(Default)]
struct FileSlots {
    free: Vec<Slot>,
    /// The first slot that was never used.
    next: Slot,
}

/// A job for the helper thread. The sender gets its result.
enum Job {
    /// Writes a block to a slot. The result is whether it was written; none if the block was dropped meanwhile.
    Write(Slot, Weak<Vec<u8>>, oneshot::Sender<bool>),
    /// Reads this many bytes from a slot.
    Read(Slot, usize, oneshot::Sender<io::Result<Vec<u8>>>),
    /// Truncates the file, because no slot is in use.
    Trim,
}

impl Disk {
    /// A spool in this directory. Its file is created by the helper thread.
    pub(super) fn new(dir: PathBuf) -> io::Result<Self> {
        let (jobs, waiting) = channel();
        let state = Arc::new(DiskState {
            dir,
            is_usable: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
            began: Instant::now(),
            jobs: AtomicUsize::new(0),
            progressed_ms: AtomicU64::new(0),
            has_logged: AtomicBool::new(false),
        });
        let worker = DiskWorker { file: None, state: state.clone(), failed_at: None };
        std::thread::Builder::new().name("gate-spool".into()).spawn(move || worker.run(&waiting))?;
        Ok(Self { jobs, slots: Mutex::default(), state })
    }

    /// Whether blocks can be written, as far as is known, and the disk is not stuck.
    pub(super) fn is_usable(&self) -> bool {
        // First, so that a hang while the file is created is logged as well.
        let is_stuck = self.is_stuck();
        !is_stuck && self.state.is_usable.load(Ordering::Relaxed)
    }

    /// Whether jobs wait and none has ended for [`STUCK_AFTER`]. Logs this.
    pub(super) fn is_stuck(&self) -> bool {
        let has_jobs = self.state.jobs.load(Ordering::Acquire) > 0;
        let waited_ms = self.state.now_ms().saturating_sub(self.state.progressed_ms.load(Ordering::Acquire));
        let is_stuck = has_jobs && waited_ms > STUCK_AFTER.as_millis() as u64;
        if is_stuck {
            self.state.log(&"the file system does not respond");
        }
        is_stuck
    }

    /// Queues a job for the helper thread. False if the thread has ended.
    fn give(&self, job: Job) -> bool {
        self.state.count_queued();
        let is_given = self.jobs.send(job).is_ok();
        if !is_given {
            self.state.count_ended();
        }
        is_given
    }

    /// A slot that is not in use.
    pub(super) fn take_slot(&self) -> Slot {
        let mut slots = self.slots.lock();
        slots.free.pop().unwrap_or_else(|| {
            slots.next += 1;
            slots.next - 1
        })
    }

    /// Frees a slot. When none is in use, the file is truncated.
    pub(super) fn give_slot(&self, slot: Slot) {
        let mut slots = self.slots.lock();
        slots.free.push(slot);
        if slots.free.len() == slots.next as usize {
            *slots = FileSlots::default();
            let _ = self.give(Job::Trim);
        }
    }

    /// Starts to write a block. None if too many are waiting. A block that is dropped before its turn is not written.
    pub(super) fn write(&self, slot: Slot, block: &Arc<Vec<u8>>) -> Option<oneshot::Receiver<bool>> {
        if self.state.writes.fetch_add(1, Ordering::Relaxed) < WRITES_MAX {
            let (done, written) = oneshot::channel();
            if self.give(Job::Write(slot, Arc::downgrade(block), done)) {
                return Some(written);
            }
        }
        self.state.writes.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Starts to read a block of this many bytes.
    pub(super) fn read(&self, slot: Slot, bytes: usize) -> oneshot::Receiver<io::Result<Vec<u8>>> {
        let (done, read) = oneshot::channel();
        // If the thread has ended, `done` is dropped, and the reader sees that.
        let _ = self.give(Job::Read(slot, bytes, done));
        read
    }
}

impl DiskState {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Counts a job that is queued.
    fn count_queued(&self) {
        // In this order: a new job must not look late.
        if self.jobs.load(Ordering::Relaxed) == 0 {
            self.progressed_ms.store(self.now_ms(), Ordering::Release);
        }
        self.jobs.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a job that has ended.
    fn count_ended(&self) {
        self.progressed_ms.store(self.now_ms(), Ordering::Release);
        self.jobs.fetch_sub(1, Ordering::AcqRel);
    }

    /// Logs an error, once until `has_logged` is reset.
    fn log(&self, error: &dyn std::fmt::Display) {
        if !self.has_logged.swap(true, Ordering::Relaxed) {
            let dir = Path::display(&self.dir);
            tracing::warn!(%dir, %error, "responses cannot be spooled; slow clients may hold the backend");
        }
    }
}

/// The helper thread. It ends when the [`Disk`] is dropped; nothing waits for it, because a disk may hang.
struct DiskWorker {
    file: Option<File>,
    state: Arc<DiskState>,
    /// The time of the last error or slow job. The first write that succeeds more than twice [`RETRY`] later resets it.
    failed_at: Option<Instant>,
}

impl DiskWorker {
    fn run(mut self, jobs: &Receiver<Job>) {
        self.reopen();
        loop {
            let retry_at = self.failed_at.map(|failed_at| failed_at + RETRY);
            let job = match retry_at.filter(|_| !self.state.is_usable.load(Ordering::Relaxed)) {
                Some(retry_at) => jobs.recv_timeout(retry_at.saturating_duration_since(Instant::now())),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(job) => self.perform(|worker| worker.work(job)),
                Err(RecvTimeoutError::Timeout) => self.reopen(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Opens the file, as a job.
    fn reopen(&mut self) {
        self.state.count_queued();
        self.perform(Self::open);
    }

    /// Does one job that was counted, and counts its end. A job that takes longer than [`STUCK_AFTER`] sets
    /// `failed_at`, so that a disk that often hangs is not logged each time. The file stays in use.
    fn perform(&mut self, job: impl FnOnce(&mut Self)) {
        let began = Instant::now();
        job(self);
        self.state.count_ended();
        if began.elapsed() > STUCK_AFTER {
            self.failed_at = Some(Instant::now());
        }
    }

    /// Creates the file if there is none. A file with write errors is tried again, because it may contain blocks.
    fn open(&mut self) {
        if self.file.is_none() {
            match tempfile::tempfile_in(&self.state.dir) {
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
                // A block without references: the client has left, or the block went back because the disk was stuck.
                let Some(block) = block.upgrade() else { return };
                let written = self.file().and_then(|file| file.write_all_at(&block, offset(slot)));
                drop(block);
                match &written {
                    Ok(()) => self.succeeded(),
                    Err(error) => self.failed(error),
                }
                let _ = done.send(written.is_ok());
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

    /// A block was written. On a full disk some writes still succeed, so errors are logged again only after a time of
    /// twice [`RETRY`] without one.
    fn succeeded(&mut self) {
        if self.failed_at.is_none_or(|failed_at| failed_at.elapsed() > 2 * RETRY) {
            self.failed_at = None;
            self.state.has_logged.store(false, Ordering::Relaxed);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.state.is_usable.store(false, Ordering::Relaxed);
        self.failed_at = Some(Instant::now());
        self.state.log(error);
    }
}

fn offset(slot: Slot) -> u64 {
    u64::from(slot) * BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_while_the_file_is_created_is_logged() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path().to_owned()).unwrap();
        // As if there were no file yet, and the job that creates it had been queued long ago.
        let began = Instant::now().checked_sub(2 * STUCK_AFTER).unwrap();
        let state = DiskState {
            dir: folder.path().to_owned(),
            is_usable: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
            began,
            jobs: AtomicUsize::new(1),
            progressed_ms: AtomicU64::new(0),
            has_logged: AtomicBool::new(false),
        };
        let disk = Disk { state: Arc::new(state), ..disk };
        assert!(!disk.is_usable() && disk.state.has_logged.load(Ordering::Relaxed));
    }
}

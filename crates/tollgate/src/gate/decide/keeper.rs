//! Keeps the learned in-flight limit of each backend and the learned costs (prices) of its routes across restarts of
//! the gate, in a file ([`super::learned_file`]).
//!
//! The file is written once a minute and at the end, if something has changed. A thread of its own writes it: a slow
//! disk delays no request, and a disk that hangs delays the end of the gate by at most [`LAST_WRITE_MAX`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::admission::Admission;
use super::learned_file::{LearnedFile, LearnedState};

const WRITE_EVERY: Duration = Duration::from_secs(60);
/// The longest wait for the last write at the end of the gate.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// The thread that writes the file.
pub(crate) struct Keeper {
    /// Dropped to end the thread.
    stop: Sender<()>,
    /// Disconnected when the last write is over.
    ended: Receiver<()>,
}

impl Keeper {
    /// Restores the state from the file in `directory`, and starts the thread. Call it before the first request.
    pub(crate) fn start(directory: &Path, admission: &Arc<Admission>) -> io::Result<Self> {
        let mut file = LearnedFile::in_directory(directory);
        restore(&file, admission);
        let ((stop, stopped), (ending, ended)) = (channel::<()>(), channel::<()>());
        let admission = admission.clone();
        let run = move || {
            let _ending = ending;
            let mut has_failed = false;
            loop {
                let is_over = stopped.recv_timeout(WRITE_EVERY) != Err(RecvTimeoutError::Timeout);
                let (key, backends) = (admission.route_hasher.secret(), admission.queues.learned());
                let written = file.write(&LearnedState { key, backends });
                if let (Err(error), false) = (&written, has_failed) {
                    let file = file.path.display();
                    tracing::warn!(%file, %error, "cannot write what was learned about the backends");
                }
                has_failed = written.is_err();
                if is_over {
                    return;
                }
            }
        };
        thread::Builder::new().name("tollgate-state".to_owned()).spawn(run)?;
        Ok(Self { stop, ended })
    }

    /// Writes the file for the last time and ends the thread. Call it when no more requests are served.
    pub(crate) fn end(self) {
        drop(self.stop);
        if self.ended.recv_timeout(LAST_WRITE_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk hangs: what was learned about the backends is not written");
        }
    }
}

/// Starts the queues from the content of the file. Without a valid file, the gate learns everything again.
fn restore(file: &LearnedFile, admission: &Admission) {
    let path = file.path.display();
    let state = match file.read() {
        Ok(state) => state,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return tracing::info!(file = %path, "what is learned about the backends will be kept here");
        }
        Err(error) => {
            return tracing::warn!(file = %path, %error, "ignoring what was learned about the backends earlier");
        }
    };
    // The prices are stored under hashes of routes, which are meaningless with another key.
    if !admission.route_hasher.restore(state.key) {
        return;
    }
    let restored = state.backends.iter().filter(|(url, learned)| admission.queues.restore(url, learned));
    let (backends, prices) =
        restored.fold((0, 0), |(backends, prices), (_, learned)| (backends + 1, prices + learned.prices.len()));
    tracing::info!(file = %path, backends, prices, "restored what was learned about the backends");
}

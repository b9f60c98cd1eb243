//! Being told to end while the terminal is taken.
//!
//! A signal that nobody listens for ends the process at once, and leaves the terminal without a cursor and without echo. So signals are listened for, on a
//! thread of its own, and become something that can be waited for together with keys.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use tokio::signal::unix::{SignalKind, signal};

/// Somebody may want this to end.
pub(super) struct Ending(UnixStream);

impl Ending {
    /// From here on signals do not end the process by themselves.
    pub(super) fn listen() -> io::Result<Self> {
        let (told, tell) = UnixStream::pair()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut signals = {
            let _inside = runtime.enter();
            [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal)
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let [terminate, hang_up, interrupt] = &mut signals;
            let (Ok(terminate), Ok(hang_up), Ok(interrupt)) = (terminate, hang_up, interrupt) else { return };
            runtime.block_on(async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                    _ = interrupt.recv() => {}
                }
            });
            // The other end sees that this one is gone.
            drop(tell);
        })?;
        Ok(Self(told))
    }
}

impl AsFd for Ending {
    /// Can be read once there was a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

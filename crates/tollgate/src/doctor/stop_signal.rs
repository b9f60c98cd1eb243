//! Handles SIGTERM, SIGHUP and SIGINT while the doctor uses the terminal.
//!
//! An unhandled signal would end the process at once and leave the terminal without cursor and echo. A thread therefore
//! waits for a signal and then makes a socket readable, which is polled together with the keyboard.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use tokio::signal::unix::{SignalKind, signal};

/// Becomes readable at the first signal, and stays readable. Further signals have no effect.
pub(super) struct StopSignal(UnixStream);

impl StopSignal {
    /// Installs the signal handlers.
    pub(super) fn listen() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let [terminate, hang_up, interrupt] = {
            let _inside = runtime.enter();
            [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal)
        };
        let (mut terminate, mut hang_up, mut interrupt) = (terminate?, hang_up?, interrupt?);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                    _ = interrupt.recv() => {}
                }
            });
            // Closing this end makes the other one readable.
            drop(sender);
        })?;
        Ok(Self(receiver))
    }
}

impl AsFd for StopSignal {
    /// Readable after a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

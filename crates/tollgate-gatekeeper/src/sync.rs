//! The atomics that the table is made of: the machine's, or those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Waits a little for another thread: first on the processor, then, in case that thread has lost its own, by giving ours away.
pub(crate) fn pause(tries: u32) {
    #[cfg(loom)]
    let _ = tries;
    #[cfg(not(loom))]
    if tries < 100 {
        std::hint::spin_loop();
        return;
    }
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

//! The atomics of the table: those of the machine, or of the model checker.

#[cfg(tollgate_model)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(tollgate_model))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Waits briefly while another thread makes `busy` true: spins first, then yields in case that thread is
/// descheduled. It may return early.
#[cfg(not(tollgate_model))]
#[cold]
pub(crate) fn wait_while(busy: impl Fn() -> bool) {
    for _ in 0..100 {
        if !busy() {
            return;
        }
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// Lets the other threads of the model run.
#[cfg(tollgate_model)]
pub(crate) fn wait_while(_busy: impl Fn() -> bool) {
    loom::thread::yield_now();
}

//! The atomics that the table is made of: the machine's, or those of the model checker.

#[cfg(tollgate_model)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(tollgate_model))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Waits a little while another thread makes `busy` true: first on the processor, then, in case that thread has lost its own, by
/// giving ours away. It may come back early.
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

/// Lets the other threads of the model go on.
#[cfg(tollgate_model)]
pub(crate) fn wait_while(_busy: impl Fn() -> bool) {
    loom::thread::yield_now();
}

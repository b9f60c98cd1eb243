//! The atomics of the table: those of the standard library, or with the cfg `tollgate_model` those of the model checker
//! loom (`model.rs`).

#[cfg(tollgate_model)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(tollgate_model))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Waits while `busy` is true, but only briefly: spins first, then yields once in case the other thread is descheduled.
/// The caller must check again.
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

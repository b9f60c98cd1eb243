//! What a worker counts. Each worker has its own numbers, so counting is an add to memory that no other thread writes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Tally { $($name: AtomicU64),+ }

        impl Tally {
            $($(#[$doc])* pub(crate) fn $name(&self) {
                // One writer: a load and a store is enough, and cheaper than a locked add.
                self.$name.store(self.$name.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            })+

            /// Every counter with its name.
            pub(crate) fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.load(Ordering::Relaxed))),+].into_iter()
            }
        }
    };
}

tally! {
    /// A connection was accepted.
    accepted,
    /// A connection was closed at once because there were too many, or too many from its address.
    turned_away,
    /// Accepting failed, for want of file descriptors or memory.
    accept_failed,
    /// A request was read.
    request,
    /// A request could not be read.
    malformed,
    /// A request was refused.
    refused,
}

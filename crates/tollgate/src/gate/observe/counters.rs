//! What a worker counts. Each worker has its own numbers, so counting is an add to memory that no other thread writes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($method:ident = $name:literal: $help:literal,)+) => {
        #[allow(non_camel_case_types, reason = "one list gives places and methods their names")]
        #[derive(Clone, Copy)]
        enum Counter { $($method),+ }

        impl WorkerCounters {
            /// The names of the counters as metrics, and what they count.
            pub(crate) const NAMES: [(&'static str, &'static str); [$($name),+].len()] = [$(($name, $help)),+];

            $(#[doc = concat!("Counts one of: ", $help, ".")]
            pub(crate) fn $method(&self) {
                self.add(Counter::$method);
            })+
        }

        /// The counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct WorkerCounters([AtomicU64; [$($name),+].len()]);
    };
}

counters! {
    accepted = "connections_accepted": "Connections accepted",
    turned_away = "connections_turned_away": "Connections closed at once, because there were too many or too many of one address",
    unopened = "connections_unopened": "Connections that ended before they were HTTP: without the PROXY header or TLS they must begin with",
    accept_failed = "accept_failures": "Failures to accept a connection, for want of file descriptors or memory",
    calmed = "h2_calmed": "HTTP/2 connections closed because the client reset more requests than it let finish",
    unbuffered = "h2_refused": "HTTP/2 requests refused (REFUSED_STREAM) because their connection held too much for others",
    request = "requests": "Requests read",
    malformed = "requests_malformed": "Requests turned away because they cannot be read, or can be read in two ways",
    refused = "requests_refused": "Requests refused",
    client_left = "requests_left": "Requests whose client left before the end of the answer",
    backend_failed = "backend_failures": "Requests that a backend did not answer, or not to the end",
    retried = "backend_retries": "Requests sent on another connection because the backend had closed the one they were for",
}

impl WorkerCounters {
    fn add(&self, place: Counter) {
        // One writer: a load and a store is enough, and cheaper than a locked add.
        let counter = &self.0[place as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The counter at this place among [`Self::NAMES`].
    pub(crate) fn read(&self, place: usize) -> u64 {
        self.0[place].load(Ordering::Relaxed)
    }
}

//! The counters of a worker. Each worker has its own, so counting is an addition to memory that no other thread writes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($method:ident = $name:literal: $help:literal,)+) => {
        #[allow(non_camel_case_types, reason = "one list gives places and methods their names")]
        #[derive(Clone, Copy)]
        enum Counter { $($method),+ }

        impl WorkerCounters {
            /// The metric names of the counters, with their help texts.
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
    turned_away = "connections_turned_away": "Connections closed at once at a limit, in total or of one address",
    unopened = "connections_unopened": "Connections that failed before HTTP, in the PROXY header or TLS",
    accept_failed = "accept_failures": "Failures to accept a connection, for lack of file descriptors or memory",
    calmed = "h2_calmed": "HTTP/2 connections closed because the client reset more requests than it let finish",
    unbuffered = "h2_refused": "HTTP/2 requests refused because their connection used too much memory",
    request = "requests": "Requests read",
    malformed = "requests_malformed": "Requests rejected because they are malformed or ambiguous",
    misdirected = "requests_misdirected": "Requests answered with 421 because no site has their host",
    refused = "requests_refused": "Requests refused",
    client_left = "requests_left": "Requests whose client disconnected before the end of the response",
    backend_failed = "backend_failures": "Requests without a complete response of a backend",
    retried = "backend_retries": "Requests sent again because the backend had closed the connection",
}

impl WorkerCounters {
    fn add(&self, place: Counter) {
        // There is one writer: a load and a store are enough, and cheaper than an atomic addition.
        let counter = &self.0[place as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The counter with this index in [`Self::NAMES`].
    pub(crate) fn read(&self, place: usize) -> u64 {
        self.0[place].load(Ordering::Relaxed)
    }
}

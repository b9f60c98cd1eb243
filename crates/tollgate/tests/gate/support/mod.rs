//! A gate to test, backends to put behind it, and clients that say exactly what they are told to.

pub(crate) mod backend;
pub(crate) mod client;
pub(crate) mod crowd;
pub(crate) mod gate;
pub(crate) mod http2;

pub(crate) use backend::Backend;
pub(crate) use client::{Response, read_response, roundtrip};
pub(crate) use gate::Gate;

use std::time::Duration;

/// Longer than anything that works takes, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A port where nobody listens, nor can anybody while this is kept: one that is given back may be somebody else's a moment later.
pub(crate) fn closed() -> (socket2::Socket, std::net::SocketAddr) {
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = taken.local_addr().unwrap().as_socket().unwrap();
    (taken, address)
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

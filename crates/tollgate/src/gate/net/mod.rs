//! Connections below HTTP: sockets, TLS, buffers, timers, and bounds on connections.

pub(super) mod buffer;
pub(super) mod caps;
pub(super) mod pace;
pub(super) mod socket;
pub(super) mod timer;
pub(super) mod tls;

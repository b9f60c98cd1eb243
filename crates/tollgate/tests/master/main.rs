//! The built master with peers that send recorded bytes of an original, and with peers on libzmq.
#![allow(clippy::unwrap_used)]

mod bytes;
mod hostile;
mod libzmq;
#[allow(dead_code, reason = "another test uses all of it")]
mod program;
mod python;
#[path = "../../../tollgate-gatekeeper/tests/support/redis_server.rs"]
mod redis_server;
mod replacement;
mod tap;

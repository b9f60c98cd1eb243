//! Gates that share limits through a real Redis: the built binary, over sockets.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../../tollgate-gatekeeper/tests/support/redis_server.rs"]
mod redis_server;
#[allow(dead_code, unused_imports, reason = "it is made for the gate's own tests too")]
#[path = "../gate/support/mod.rs"]
mod support;

mod failover;
mod faults;
mod load;
mod shared;
mod timeouts;

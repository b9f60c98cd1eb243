//! Gates that share limits through a real Redis: the built binary, over sockets.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod embedded;
mod failover;
mod faults;
mod load;
mod shared;
mod timeouts;

use tollgate_test_support as support;

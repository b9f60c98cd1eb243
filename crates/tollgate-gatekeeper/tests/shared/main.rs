//! Shared limits on a real store, with several real processes.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking, and says what it measured")]

use tollgate_test_support::redis_server;

mod cluster;
mod exact;
mod faults;
mod fenced_pages;
mod fixtures;
mod flags;
mod hammer;
mod law;
mod limiter;
mod load;
mod refunds;
mod store;
mod topology;

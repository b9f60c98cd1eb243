//! Limits on a store that is really there, asked by processes that really are several.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking, and says what it measured")]

#[path = "../support/redis_server.rs"]
mod redis_server;

mod cluster;
mod exact;
mod faults;
mod flags;
mod hammer;
mod law;
mod limiter;
mod load;
mod refunds;
mod shelf;
mod store;
mod topology;
mod world;

//! The address for operators, by what it says on the wire.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../../tollgate-gatekeeper/tests/support/redis_server.rs"]
mod redis_server;

mod flagged;
mod keys;
mod metrics;
mod openapi;
mod rejections;
mod roles;
mod security;
mod shared_flags;
mod support;
mod webhook;

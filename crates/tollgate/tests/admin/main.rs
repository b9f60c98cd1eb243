//! The address for operators, by what it says on the wire.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod authors;
mod callers;
mod charts;
mod doctor;
mod flagged;
mod fleet;
mod flood;
mod graphite;
mod home;
mod https;
mod keys;
mod log;
mod masking;
mod metrics;
mod openapi;
#[allow(dead_code, reason = "another test uses all of it")]
#[path = "../master/program.rs"]
mod program;
#[path = "../../../tollgate-gatekeeper/tests/support/redis_server.rs"]
mod redis_server;
mod rejections;
mod reload;
mod roles;
mod security;
mod shared_flags;
mod support;
mod telemetry;
mod terminal;
mod webhook;

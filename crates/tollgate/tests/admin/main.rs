//! The admin address over HTTP.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod authors;
mod charts;
mod doctor;
mod flagged;
mod fleet;
mod flood;
mod graphite;
mod home;
mod https;
mod key_names;
mod keys;
mod log;
mod masking;
mod metrics;
mod openapi;
mod rejections;
mod reload;
mod roles;
mod security;
mod shared_flags;
mod support;
mod telemetry;
mod terminal;
mod webhook;

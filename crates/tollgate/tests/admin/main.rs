//! The address for operators, by what it says on the wire.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod keys;
mod metrics;
mod openapi;
mod rejections;
mod roles;
mod security;
mod support;
mod webhook;

//! What a Rust service embeds: bounded tables, a clock and the limiter.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "redis")]
pub mod shared;

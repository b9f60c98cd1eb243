//! The limiter as a library for Rust services: bounded tables, a clock and the decisions.
//!
//! A [`limiter`] has rules and, for each, a table of fixed size with the state of every caller. It decides
//! from memory on any number of threads, without allocation and without a shared lock. An admitted request
//! has a [`ticket`], which is returned when it ends. Time comes from a [`clock`] and is an argument
//! everywhere else. Reports to masters pass through a [`relay`].
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod adjust;
pub mod call_limit;
pub mod cell;
pub mod clock;
pub mod hash;
mod hot_slots;
pub mod identifier;
mod key_record;
pub mod limit_status;
pub mod limiter;
#[cfg(feature = "link")]
pub mod link;
#[cfg(any(feature = "link", feature = "redis"))]
mod live_metrics;
mod lock;
mod memory;
#[cfg(all(test, tollgate_model))]
mod model;
pub mod names;
#[cfg_attr(not(feature = "link"), allow(dead_code, reason = "only the link reads the relay"))]
pub mod relay;
mod report;
mod row;
pub mod sample;
mod scaled;
#[cfg(feature = "redis")]
pub mod shared;
mod sync;
pub mod table;
pub mod ticket;
#[cfg(feature = "tower")]
pub mod tower;
pub mod truncation;

pub use memory::OutOfMemory;

//! What a Rust service embeds: bounded tables, a clock and the limiter.
//!
//! A [`limiter`] holds rules and, for each, a table of fixed size with the state of every caller. It decides from memory, from any number of
//! threads, without allocating and without a lock that they all share. What it let in comes back to it as a [`ticket`].
//! Time comes from a [`clock`], and is an argument everywhere else. What masters are to hear of it goes into a [`relay`].
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod clock;
pub mod cut;
mod front;
pub mod hash;
pub mod identifier;
pub mod limiter;
mod line;
#[cfg(feature = "link")]
pub mod link;
mod lock;
mod memory;
#[cfg(all(test, tollgate_model))]
mod model;
pub mod names;
#[cfg_attr(not(feature = "link"), allow(dead_code, reason = "it is the link that carries on what is dropped here"))]
pub mod relay;
mod report;
pub mod sample;
mod seat;
#[cfg(feature = "redis")]
pub mod shared;
pub mod standing;
mod sync;
pub mod table;
pub mod ticket;
#[cfg(feature = "tower")]
pub mod tower;

pub use memory::NoMemory;

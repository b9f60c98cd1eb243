//! Rate limits, quotas and CPU-time budgets for Rust services, in bounded memory.
//!
//! ```
//! use tollgate_gatekeeper::{Limiter, per_second};
//!
//! let limiter = Limiter::builder().rule(per_second(10).burst(20)).build()?;
//! match limiter.check("ann") {
//!     Ok(_) => println!("served"),
//!     Err(refused) => println!("retry in {:?}", refused.retry_after),
//! }
//! # Ok::<(), tollgate_gatekeeper::BuildError>(())
//! ```
//!
//! The other limits are [`bucket`], [`window`], [`in_flight`] and [`budget`]. [`RuleBuilder::by`] selects what
//! identifies a caller, such as `ip/24` or `header:x-api-key`, and [`LimiterBuilder::layer`] makes a layer for axum,
//! hyper, tonic and tower. Limits are shared with other processes, among them Tollgate's gate, through Redis
//! (`shared::SharedLimiter`) or through a master, a process that shares the state of rules between gates
//! (`tower::Keeper::linked`).
//!
//! # How it works
//!
//! A [`limiter`] has rules and, for each, a table of fixed size with the state of every caller. It decides
//! from memory on any number of threads, without allocation and without a shared lock. An admitted request
//! has a [`ticket`], which is returned when it ends. Time comes from a [`clock`] and is an argument
//! everywhere else. Reports to masters pass through a [`relay`].
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod adjust;
mod build_error;
pub mod builder;
pub mod call_limit;
pub mod cell;
pub mod clock;
pub mod hash;
pub mod histogram;
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
mod rule_names;
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

pub use build_error::{BuildError, RuleError};
pub use builder::{
    Admitted, ClockedLimiter, LimiterBuilder, Refused, RuleBuilder, bucket, budget, in_flight, per_hour, per_minute,
    per_second, window,
};
pub use limiter::Limiter;
pub use tollgate_core;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

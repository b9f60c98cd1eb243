//! A site that can be overloaded, and the crowds that do it.
//!
//! The demo and the storm benchmark show the same thing to different people, so they share one site and one load generator:
//! this crate. It knows nothing of Tollgate; whatever stands between the crowds and the site is only an address.
//!
//! ```text
//! plan (who comes when, from one seed) -> storm (walks the plan over sockets) -> tally (what each visitor saw)
//!                                                        |
//!                                                      site (burns exact CPU per page, counts it per crowd)
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![deny(unsafe_code)]

pub mod child;
pub mod client;
pub mod counters;
pub mod cpu;
pub mod crowd;
pub mod dice;
pub mod page;
pub mod plan;
pub mod site;
pub mod storm;
pub mod tally;
mod turnstile;

//! A site that can be overloaded, and the load that does it.
//!
//! The demo and the storm benchmark share this site and load generator. The crate does not know Tollgate; a
//! gate in front of the site is only an address.
//!
//! ```text
//! plan (all visits, from one seed) -> storm (plays the plan over sockets) -> tally (what each visitor saw)
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
mod worker_slots;

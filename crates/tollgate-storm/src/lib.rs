//! A *storm*: people read the pages of a simulated site while a crawler overloads it. This crate has the site, the load
//! generator that plays people and crawler, and the results.
//!
//! The demo of Tollgate, its benchmarks and the program `tollgate-storm` use it. The crate does not depend on Tollgate;
//! a gate in front of the site is only an address, and any other proxy can be measured in its place.
//!
//! ```no_run
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use tollgate_storm::{crowd::Origin, plan::{Phases, Plan}, storm, tally::Tally, target::Target};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let second = Duration::from_secs(1);
//! let phases = Phases { calm: second * 10, storm: second * 60, recovery: second * 20 };
//! let plan = Arc::new(Plan::new(1, phases, Origin::Networks(20)));
//! let (target, tally) = (Arc::new(Target::of_url("http://127.0.0.1:8888", None)?), Arc::new(Tally::default()));
//! storm::play(plan, target, Instant::now(), Arc::clone(&tally)).await;
//! println!("{} page views", tally.views().len());
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! ```text
//! plan (all visits, from one seed) -> storm (plays the plan over sockets) -> tally (the result of each visit)
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
pub mod picture;
pub mod plan;
pub mod results;
pub mod site;
pub mod storm;
pub mod tally;
pub mod target;
mod tls;
mod worker_slots;

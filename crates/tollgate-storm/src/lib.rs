//! A *storm*: people read the pages of a simulated site while a crawler overloads it. This crate has the site, the load
//! generator, and the results. The clients are three crowds: people with an address each, an office of thirty people
//! behind one address, and the crawler.
//!
//! The demo of Tollgate, its tests, its benchmarks and the program `tollgate-storm` use it. The crate does not depend
//! on Tollgate; a gate in front of the site is only an address, and any other proxy can be measured in its place.
//!
//! ```no_run
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use tollgate_storm::{crowd::Origin, plan::{Phases, Plan}, storm, tally::Tally, target::Target};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let second = Duration::from_secs(1);
//! let phases = Phases { calm: second * 10, storm: second * 60, recovery: second * 20 };
//! // Seed 1, and a crawler from 20 networks.
//! let plan = Arc::new(Plan::new(1, phases, Origin::Networks(20)));
//! // The gate in front of the site. An https URL could name a file of certificates in place of `None`.
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
//! plan (when people visit, from one seed) -> storm (plays the plan over sockets) -> tally (the result of each visit)
//!                                              |
//!                                            site (burns exact CPU time, sleeps, or both; counts CPU time per crowd)
//! ```
//!
//! The crawler has no schedule: it requests again as soon as it has a response (a closed loop).
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the schedule |
//! | [`crowd`] | the clients and their addresses |
//! | [`page`] | the kinds of page and their cost |
//! | [`dice`] | seeded random numbers |
//! | [`storm`] | the load generator |
//! | [`client`], `tls` | its HTTP client and its TLS connections |
//! | [`target`] | the server under test |
//! | [`site`], `worker_slots` | the simulated site and its workers |
//! | [`cpu`], [`counters`] | measures and burns CPU time; the site's requests and CPU time per crowd |
//! | [`tally`] | the result of each visit, and the crawler's totals |
//! | [`results`], [`picture`] | the summary of a tally as data and as an SVG picture |
//! | [`child`] | child processes for the demo and the benchmarks |
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

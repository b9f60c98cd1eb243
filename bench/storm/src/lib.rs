//! The parts of the storm benchmark that other benchmarks share: a site in a process of its own, and what can stand
//! in front of it.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

pub mod machine;
pub mod peers;
pub mod site_process;
pub mod stats;

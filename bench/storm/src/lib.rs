//! The parts of the storm benchmark that other benchmarks share: a site in a separate process, and the gates
//! in front of it.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

pub mod machine;
pub mod peers;
pub mod site_process;
pub mod stats;

//! Gates and masters on a network that loses, delays, reorders, duplicates and partitions, with wrong clocks
//! and crashes.
//!
//! A run depends only on its seed, so a failure can be reproduced: `TOLLGATE_SEED=123 cargo test -p
//! tollgate-core --test fleet`. `TOLLGATE_SEEDS=10000 cargo test --release -p tollgate-core --test fleet`
//! runs more seeds.
#![allow(clippy::unwrap_used)]

mod faults;
mod laws;
mod packet;
mod plan;
mod scenarios;
mod simulated_fleet;

//! Gates and masters on a network that loses, delays, reorders, doubles and cuts, with clocks that disagree and processes that die.
//!
//! Everything that happens in a run follows from one number, so a failure that prints its seed can be had again:
//! `TOLLGATE_SEED=123 cargo test -p tollgate-core --test fleet`. `TOLLGATE_SEEDS=10000 cargo test --release -p tollgate-core --test fleet`
//! runs more of them.
#![allow(clippy::unwrap_used)]

mod chance;
mod faults;
mod laws;
mod packet;
mod plan;
mod scenarios;
mod world;

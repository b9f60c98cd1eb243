//! Whole scenarios in virtual time: clients, the fair queue, and backends of several kinds. No socket, no sleep, one seed.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::type_complexity, dead_code)]

mod alone;
mod backend;
mod gate;
mod random;
mod storm;
mod world;

//! Faults with a number, and the page that lists them with their tests: docs/reliability.md.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod admin;
#[path = "../doors/support.rs"]
mod doors;
mod faults;
#[path = "../admin/support.rs"]
mod gate;
mod keys;
mod numbers;
mod page;
mod wall_clock;

//! The limiter from the point of view of its users: exact across threads, bounded, and without advantage for
//! invented keys.
#![allow(clippy::unwrap_used)]

mod exact;
mod faults;
mod fixtures;
mod invented_keys;
mod names;
mod overflow;
mod refunds;
mod reload;
mod tickets;
mod time;

//! The limiter as those see it who embed it: exact over threads, bounded, and never a gain for those who invent keys.
#![allow(clippy::unwrap_used)]

mod exact;
mod floor;
mod names;
mod refunds;
mod reload;
mod spraying;
mod tickets;
mod time;
mod world;

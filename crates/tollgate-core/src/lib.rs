//! What Tollgate decides.
//!
//! No clock, no socket, no file, no log, no randomness and no dependency: time and tolls come in as arguments, decisions go
//! out as values. So every promise that Tollgate makes can be tested here exhaustively and replayed in virtual time.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod limit;
pub mod record;
pub mod time;
pub mod toll;

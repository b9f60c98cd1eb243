//! What Tollgate decides.
//!
//! No clock, no socket, no file, no log, no randomness and no dependency: time and tolls come in as arguments, decisions go
//! out as values. So every promise that Tollgate makes can be tested here exhaustively and replayed in virtual time.
//!
//! A [`rule`] says when it applies, how callers are told apart ([`class`]), and one [`limit`]; its state for one caller is a [`record`].
//! To [`decide`] is to look at the
//! records of all rules that apply and then charge all or none; what comes out is a [`decision`].
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod band;
pub mod beat;
pub mod class;
pub mod condition;
pub mod decide;
pub mod decision;
pub mod escalation;
pub mod fleet;
pub mod inputs;
pub mod limit;
pub mod network;
pub mod path;
pub mod queue;
pub mod record;
pub mod request;
pub mod route;
pub mod rule;
pub mod time;
pub mod toll;
pub mod virtual_clock;
pub mod watch;

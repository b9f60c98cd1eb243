//! Tollgate's decision logic.
//!
//! The crate has no clock, socket, file, log, randomness or dependency. The time and the cost of a request (its
//! [`toll`]) are arguments, and decisions are return values. Every promise of Tollgate can therefore be tested
//! exhaustively and replayed in virtual time. The crate `tollgate-gatekeeper` adds tables and a clock, and the binary
//! `tollgate` adds everything else.
//!
//! A [`rule`] has a [`condition`], a [`class`] that computes the key of a caller, and one [`limit`] for each key. The
//! state of a rule for one key is a [`record`]. [`decide`] checks the records of all rules that apply and then charges
//! all of them or none. The result is a [`decision`].
//!
//! Besides the rules, a [`queue`] shares each backend fairly, a [`watch`] records refused keys for operators, and
//! [`fleet`] shares limits between several gates.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod band;
pub mod cell;
pub mod class;
pub mod condition;
mod cookie;
pub mod decide;
pub mod decision;
pub mod escalation;
pub mod fast_rate;
pub mod fleet;
pub mod form;
mod hash_index;
pub mod inputs;
mod key_sink;
pub mod limit;
mod named_enum;
pub mod network;
pub mod path;
mod pattern;
pub mod query;
pub mod queue;
pub mod record;
pub mod request;
pub mod route;
pub mod rule;
pub mod site;
pub mod time;
pub mod toll;
pub mod virtual_clock;
pub mod watch;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

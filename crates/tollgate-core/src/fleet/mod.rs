//! One limit shared by many gates: both sides of the protocol between gates and masters, as state machines
//! without I/O.
//!
//! A gate, a reverse proxy, decides by itself and reports the requests that it admits. The master, a separate process,
//! adds up the reports of all gates and orders them to delay the keys that exceed a limit together. A *domain* is the
//! name under which masters account for one rule, an *identifier* is a key of it as text, and *debt* is the part of an
//! identifier's charges that is not paid back yet. A *pardon* is an operator's order to remove the debt of an
//! identifier. *Original* peers are programs of Smockron, an earlier rate limiter with the same protocol.
//!
//! `handle_*` methods of [`Gate`] and [`Master`] take events and the current time. `poll_*` methods return
//! the messages to send, and `poll_timeout` returns the time of the next poll. The caller owns the sockets
//! and the clocks.
//!
//! The protocol converges because the debt of an identifier is one number, the moment at which all of it is
//! paid back. Every copy of the number is at most the true value, every message carries a copy, and merging
//! takes the larger. Lost, duplicated, late or reordered messages can therefore block no client for longer
//! than its true debt, and every message that arrives brings the copies closer to it.

mod account;
mod bounded_map;
mod gate;
mod master;
mod message;
mod overshoot;

pub use gate::{Gate, GateSettings, Instruction, Usage};
pub use master::{Domain, Master, MasterSettings, Notice, Outcome, Snapshot};
pub use message::{Command, Order, Report, Stamp, Status, Tally};
pub use overshoot::DomainOvershoot;

use crate::time::Moment;

/// The clocks of a machine at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The monotonic clock.
    pub now: Moment,
    /// The wall clock, in milliseconds since 1970. It may be wrong, so it only dates the messages of original peers,
    /// numbers pardons, and detects messages that were stuck for long.
    pub wall_ms: u64,
}

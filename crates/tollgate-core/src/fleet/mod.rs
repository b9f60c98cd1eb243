//! Many gates, one limit: both sides of the protocol between gates and masters, as values and state machines without I/O.
//!
//! A [`Gate`] and a [`Master`] are told what happened and what time it is (`handle_*`), and say what is to be sent (`poll_*`) and when
//! they want to be asked again (`poll_timeout`). Whoever drives them owns the sockets, the clocks and the losses.
//!
//! Why this converges: what an identifier owes is one number, the moment at which all is paid back. Every part of the fleet holds a
//! number that is no larger than the truth, every message carries one, and merging is taking the larger. So nothing that is lost, doubled,
//! late or out of order can block anybody for longer than the truth would, and whatever gets through brings everybody closer to it.

mod account;
mod gate;
mod ledger;
mod master;
mod message;
mod overshoot;

pub use gate::{Gate, GateSettings, Instruction, Passage};
pub use master::{Domain, Master, MasterSettings, Notice, Outcome, Snapshot};
pub use message::{Command, Order, Report, Stamp, Status, Tally};
pub use overshoot::DomainFigures;

use crate::time::Moment;

/// What the two clocks of a machine say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The monotonic clock.
    pub now: Moment,
    /// The wall clock, in milliseconds since 1970: only for original peers, and never trusted.
    pub wall_ms: u64,
}

//! Many gates, one limit: both sides of the protocol between gates and masters, as values and state machines without I/O.

mod message;

pub use message::{Command, Echo, Order, Report, Stamp, Status, Tally};

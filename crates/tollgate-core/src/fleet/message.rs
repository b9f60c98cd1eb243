//! Messages between gates and masters.
//!
//! Smockron is an earlier rate limiter with gates and masters; its programs are the *original* peers. Its
//! messages carry wall-clock times and one request each. A wrong clock blocks innocent clients, and a lost
//! message is a request that is never charged. Tollgate peers add fields that prevent both. A [`Tally`] is
//! cumulative, so the next one repairs a loss and a duplicate changes nothing. Its times are on the master's
//! monotonic clock, which the master's messages carry, so wall clocks do not matter. An original master ignores
//! the additional fields, and original gates do not receive Tollgate's orders.

use crate::time::{Moment, Span};
use crate::toll::Toll;

/// The decision of a gate on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Forwarded immediately.
    Accepted,
    /// Held, and forwarded later.
    Delayed,
    /// Refused.
    Rejected,
}

/// A gate's report about one identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// The domain: the name under which the master accounts for one rule.
    pub domain: &'a [u8],
    /// The decision. A report without a new request, which repeats a tally or adds CPU time, has
    /// [`Status::Rejected`]: an original master ignores it, and a Tollgate master uses only the tally.
    pub status: Status,
    /// The key of the request as text, such as the address of the client.
    pub identifier: &'a [u8],
    /// The arrival time of the request on the gate's wall clock, in milliseconds since 1970. With a tally, the time
    /// of the last usage: a request, or CPU time that was charged later.
    pub received_ms: u64,
    /// The forwarding time of a held request on the gate's wall clock, in milliseconds since 1970.
    pub delayed_until_ms: Option<u64>,
    /// A free-text description of the request. Tollgate gates send its method, path and
    /// user agent, if they are configured to.
    pub note: &'a [u8],
    /// The CPU time that is new in this report, if the gate is configured to send it. The total of a tally
    /// includes it.
    pub cpu: Option<Span>,
    /// The cumulative count that Tollgate gates add, except to reports of refused requests.
    pub tally: Option<Tally>,
}

/// The running count of one gate for one identifier. All times are on the clock of the receiving master,
/// which the gate estimates from that master's messages. While the gate has no master, they are on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The gate's random number, chosen at its start.
    pub gate: u64,
    /// The number of the count. The gate has one counter for the counts of all identifiers, so a count that
    /// restarts from zero has a larger number than before.
    pub serial: u64,
    /// The total since the start of the count.
    pub total: Toll,
    /// The part of `total` that an earlier master has charged. A master that does not know this count yet
    /// charges only the rest. While the gate has no master, its last master counts as an earlier one.
    pub base: Toll,
    /// The number of the last pardon of the identifier that the gate has received; 0 for none. A master does not
    /// charge a count that began before a pardon that the gate has not received.
    pub era: u64,
    /// The master on whose clock the times are; `None` for the gate's own clock, on which only differences
    /// are meaningful.
    pub master: Option<u64>,
    /// The time of sending.
    pub sent: Moment,
    /// The earliest time of a request beyond `base`: the start of the count, or the last message of the earlier
    /// master.
    pub began: Moment,
    /// The time of the last usage: a request, or CPU time that was charged later.
    pub last: Moment,
    /// The time at which all debt is paid back, as far as the gate knows.
    pub clear: Moment,
}

/// A time on one master's clock. It has no meaning to other masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The master's random number, chosen at its start.
    pub master: u64,
    /// The master's monotonic clock.
    pub tick: Moment,
}

/// A master's order to the gates of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<'a> {
    /// The domain; empty in a beacon, which is for all.
    pub domain: &'a [u8],
    /// The key that the order is about; empty in a beacon.
    pub identifier: &'a [u8],
    /// The command.
    pub command: Command,
}

/// An order's command. Only the first is part of Smockron; original gates receive no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Admit nothing of the identifier before this time on the wall clock.
    DelayUntil {
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// The same on the master's clock.
    Delay {
        /// The time of sending.
        stamp: Stamp,
        /// The number of the last pardon before this; 0 for none.
        era: u64,
        /// The time from which there is room for one more request.
        next: Moment,
        /// The time at which all debt is paid back, in a domain with one limit.
        clear: Option<Moment>,
    },
    /// Remove the debt of the identifier on behalf of an operator, and ignore orders from before this pardon.
    Pardon {
        /// The time of sending.
        stamp: Stamp,
        /// The number of the pardon; later ones are larger.
        era: u64,
    },
    /// A heartbeat with the master's clock.
    Beacon {
        /// The time of sending.
        stamp: Stamp,
    },
}

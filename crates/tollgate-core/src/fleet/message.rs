//! What gates and masters say to each other.
//!
//! Smockron's messages carry wall-clock times and one request each: a clock that is off blocks the innocent, and a lost message is a
//! request that nobody pays for. A peer of our own adds what makes both harmless. A [`Tally`] is cumulative, so the next one repairs a
//! loss and a second copy changes nothing, and its times are on the master's own monotonic clock, which gates hear from the master itself,
//! so it does not matter what anybody's wall clock says. An original peer does not see the additions.

use crate::time::{Moment, Span};
use crate::toll::Toll;

/// What became of a request at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It went on at once.
    Accepted,
    /// It was held, and goes on later.
    Delayed,
    /// It was turned away.
    Rejected,
}

/// What a gate tells its masters about one identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// The protected thing.
    pub domain: &'a [u8],
    /// What became of the request. A report that only repeats a tally says [`Status::Rejected`], which an original master ignores.
    pub status: Status,
    /// The caller.
    pub identifier: &'a [u8],
    /// When the request came, by the gate's wall clock, in milliseconds since 1970.
    pub received_ms: u64,
    /// When a held request goes on, by the gate's wall clock.
    pub delayed_until_ms: Option<u64>,
    /// Free text about the request: its route and its agent, where gates of our own say so.
    pub note: &'a [u8],
    /// The CPU time that is new in this report, if it is told.
    pub cpu: Option<Span>,
    /// What a gate of our own adds.
    pub tally: Option<Tally>,
}

/// Everything that one gate has let through for one identifier since it began to count. All times are on the clock of the master
/// that it is for, as the gate has worked it out from what that master said, or on the gate's own while it hears none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The gate, by a number that it drew when it started.
    pub gate: u64,
    /// Which counting this is: a gate that begins anew takes a larger number.
    pub serial: u64,
    /// What was let through since then.
    pub total: Toll,
    /// How much of that a former master has heard of: a master that knows nothing of this counting begins here. While the gate hears no master,
    /// whoever hears it may be another than before, and this is what the last one that it heard knows of.
    pub base: Toll,
    /// The last pardon of the identifier that the gate has heard of; 0 for none.
    pub era: u64,
    /// The master whose clock the times are on; none for the gate's own, of which only differences mean anything.
    pub master: Option<u64>,
    /// When this was sent.
    pub sent: Moment,
    /// When the first request beyond the base can have been let through.
    pub began: Moment,
    /// When the last request was let through.
    pub last: Moment,
    /// When, by all that the gate knows, everything is paid back.
    pub clear: Moment,
}

/// A moment on the clock of one master, which means nothing to any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The master, by a number that it drew when it started.
    pub master: u64,
    /// Its clock.
    pub tick: Moment,
}

/// What a master tells the gates of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order<'a> {
    /// The protected thing; empty in a beacon, which is for all.
    pub domain: &'a [u8],
    /// The caller; empty in a beacon.
    pub identifier: &'a [u8],
    /// What to do.
    pub command: Command,
}

/// What a gate is to do. Only the first is Smockron's; an original gate hears no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Let nothing of the identifier through before this, by the wall clock, in milliseconds since 1970.
    DelayUntil {
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// The same on the master's clock.
    Delay {
        /// When it was said.
        stamp: Stamp,
        /// The pardon that this came after; 0 for none.
        era: u64,
        /// When there is room for one more.
        next: Moment,
        /// When all is paid back, in a domain with one rule.
        clear: Option<Moment>,
    },
    /// Forget what the identifier owes, and everything that was said about it before this pardon.
    Pardon {
        /// When it was said.
        stamp: Stamp,
        /// Which pardon this is: later ones are larger.
        era: u64,
    },
    /// Nothing: the master is there, and this is its clock.
    Beacon {
        /// When it was said.
        stamp: Stamp,
    },
}

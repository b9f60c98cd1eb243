//! What gates and masters say to each other.
//!
//! Smockron's messages carry wall-clock times and one request each: a clock that is off blocks the innocent, and a lost message is a
//! request that nobody pays for. A peer of our own adds what makes both harmless. A [`Tally`] is cumulative, so the next one repairs a
//! loss and a second copy changes nothing, and all its times are relative, so no two clocks are ever compared. An original peer does not
//! see the additions.

use crate::time::{Moment, Span};

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
    /// Free text about the request.
    pub note: &'a [u8],
    /// What a gate of our own adds.
    pub tally: Option<Tally>,
}

/// Everything that one gate has let through for one identifier, as of when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The gate, by a number that it drew when it started.
    pub gate: u64,
    /// When counting began, on the gate's own clock: of two tallies of one gate the later one replaces the earlier.
    pub since: u64,
    /// How many requests were let through since then.
    pub count: u64,
    /// How much CPU time they have cost.
    pub cpu: Span,
    /// How long ago the last of them was.
    pub age: Span,
    /// How long until the gate, by all it knows, owes the identifier everything again.
    pub clear: Span,
    /// The last pardon that the gate has heard of; 0 for none.
    pub era: u64,
    /// The last word of a master that the gate has heard.
    pub echo: Option<Echo>,
}

/// When a master spoke, on the clock of that master alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The master, by a number that it drew when it started.
    pub master: u64,
    /// Its clock when it spoke.
    pub tick: Moment,
}

/// A master's stamp on its way back: it tells that master how long the round trip took without comparing two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// What was heard.
    pub stamp: Stamp,
    /// How long ago it was heard.
    pub heard_ago: Span,
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
    /// The same as a span from now, which needs no common clock.
    Delay {
        /// When it was said.
        stamp: Stamp,
        /// The pardon that this came after; 0 for none.
        era: u64,
        /// How long until there is room for one more.
        wait: Span,
        /// How long until all is paid back, in a domain with one rule.
        clear: Option<Span>,
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

//! Limits that are exact across processes, on Redis, Valkey or a Redis Cluster.
//!
//! A read, a decision and a write from here would let as many requests through as there are gates between the read and the write. So
//! the decision is a script that runs in the store, on the store's clock: all shared rules of a request in one step and one round trip.
//!
//! The store is never in the way. An [`Answer`] that does not come within the deadline is not waited for, and a [`Store`] that
//! does not answer is not asked; then there is a reason ([`Unanswered`]) instead of an answer, and the caller decides by its local state. A rule
//! for which exactness is worth more than that has another [`OnTimeout`].
//!
//! A [`SharedLimiter`] does all of that for rules of which some are shared and some are not. Whoever has a limiter of its own already
//! asks [`Sharing`] about the requests that it concerns.
//!
//! On a Cluster, rules of one key are on one node and are decided in one step. Rules of different keys are decided on their nodes side
//! by side, and if one refuses, the others give back what they took.
mod address;
mod answer;
mod aside;
mod breaker;
mod charge;
mod count;
mod courier;
mod flags;
mod here;
mod key;
mod lease;
mod limiter;
mod parts;
mod random;
mod rule;
mod script;
mod sharing;
mod shelf;
mod slot;
mod store;
mod ticket;
mod times;
mod vitals;

#[cfg(test)]
mod conformance;

pub use address::{Address, AddressFault};
pub use answer::Answer;
pub use charge::SharedTicket;
pub use count::Counts;
pub use flags::{Clearing, FlagChanges, SharedFlag, SharedFlags, Since, Telling};
pub use lease::{LEASE_LIFE, Unleasable, slice_of};
pub use limiter::{NoSharedLimiter, SharedLimiter, SharedPlan};
pub use rule::{LOG_MAX, SharedRule, Unshareable, WORK_LIFE};
pub use sharing::{Authority, Explained, NoSharing, OnTimeout, Share, Sharing};
pub use shelf::{Legacy, Page, Shelf, Writing};
pub use store::{Asked, Options, Store};
pub use ticket::Ticket;
pub use times::AnswerTimes;
pub use vitals::Vitals;

/// Why the store did not decide, so that the local state has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// The deadline has passed.
    Late,
    /// The store does not answer.
    Down,
    /// Too many are waiting for it.
    Busy,
    /// The store said that it cannot: it is full, or read-only, or its user may not.
    Failed,
    /// What is kept under the name of a key is not ours.
    Foreign,
    /// The answer makes no sense.
    Garbled,
}

impl Unanswered {
    /// The word that people and programs see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Down => "down",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Foreign => "foreign",
            Self::Garbled => "garbled",
        }
    }
}

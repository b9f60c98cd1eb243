//! Limits that are exact across processes, on Redis, Valkey or a Redis Cluster (the *store*). Gates use it for rules
//! with `state = "redis"`, and services that embed the gatekeeper can share these rules.
//!
//! The state of one rule for one key is a value in the store; its name is called the *slot* of the key, and is not to
//! be confused with the 16384 hash slots of a Cluster, which determine the node of a name. A *claim* is what a
//! request asks of one slot, such as to charge it.
//!
//! With a read, a local decision and a write, every gate between the read and the write could admit a
//! request. The decision is therefore a script that runs in the store, on the store's clock: all shared rules
//! of a request in one step and one round trip.
//!
//! A request never waits for long. If an [`Answer`] does not arrive within the deadline, or the [`Store`] is
//! known to be down, the result is a reason ([`Unanswered`]), and the caller decides by its local state.
//! A rule for which exactness is more important can wait longer or refuse instead ([`OnTimeout`]).
//!
//! A [`SharedLimiter`] does this for rules of which some are shared. A service with its own limiter uses
//! [`Sharing`] for the requests that it concerns.
//!
//! On a Cluster, the rules of one key are on one node and are decided in one step. Rules of different keys
//! are decided on their nodes concurrently, and if one refuses, the others are refunded.
mod address;
mod answer;
mod breaker;
mod cluster_parts;
mod counters;
mod fenced_pages;
mod flags;
mod health;
mod key_text;
mod lease;
mod limiter;
mod local;
mod pipeline;
mod rule;
mod script;
mod shared_ticket;
mod sharing;
mod side_connection;
mod slot;
mod store;
mod store_clocks;
mod store_ticket;

#[cfg(test)]
mod conformance;

pub use address::{Address, AddressError};
pub use answer::Answer;
pub use counters::Counts;
pub use fenced_pages::{FencedPages, FinishedTerm, Page, WriteOutcome};
pub use flags::{Clearing, FlagChanges, FlagWriteOutcome, SharedFlag, SharedFlags, Since};
pub use health::StoreHealth;
pub use lease::{LEASE_LIFE, Unleasable, slice_of};
pub use limiter::{SharedLimiter, SharedPlan};
pub use rule::{LOG_MAX, SharedRule, Unshareable, WORK_LIFE};
pub use shared_ticket::SharedTicket;
pub use sharing::{Authority, Explained, OnTimeout, Share, Sharing};
pub use store::{AskedRule, Options, Store};
pub use store_ticket::StoreTicket;

tollgate_core::named_enum! {
    /// The reason why the store did not decide, so that the local state must.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Unanswered {
        /// The deadline has passed.
        Late = "late",
        /// The store is down.
        Down = "down",
        /// Too many calls are waiting.
        Busy = "busy",
        /// The store returned an error: it is full or read-only, or the user lacks permission.
        Failed = "failed",
        /// The slot of a key has a value that this software did not write.
        Foreign = "foreign",
        /// The reply is invalid.
        Garbled = "garbled",
    }
}

//! Who goes next when not all can go at once.
//!
//! First come, first served gives the backend to whoever asks most. A limit on requests or connections cannot tell a crawler from an
//! office behind one address. Fair queuing can: every key has a tag in virtual time that advances by what its requests cost, divided by
//! the key's share, and the request with the smallest tag goes next. A light client's tag is always behind, so it is served at once;
//! a heavy one gets everything that is left. A request answers for its address, its network and its block: its tag is the
//! largest of the three, so a crawler gains little by coming from many addresses.
//!
//! Costs are reserved from a prediction when a request is dispatched, otherwise a hundred requests sent in one instant would all be
//! free, and corrected when the true toll is known ([`FairQueue::settle`]).
//!
//! Order alone is not enough. The backend shares its cores among all requests that are in it, so ten requests of a crawler
//! there make a page ten times slower, however soon it was dispatched. So a client that is ahead gets a place only while the backend
//! would have a core idle without it ([`Places::open`]). One that is behind gets a place as long as there is any ([`Places::limit`]) if
//! its request is light beside what is there. If it is not, it would only share a core with its like: both would be done when
//! the second of them would have been, and all that is light would suffer meanwhile.
//!
//! Among clients that are ahead, light requests have a queue of their own, and half of what there is. A crawler that comes from everywhere cannot
//! be told by its addresses, and an office is as far ahead as each of its parts; but people's pages are light beside what
//! crawlers like.
//!
//! In virtual time:
//!
//! ```text
//!      CREDIT before        BEHIND before              now
//!   ---------+--------------------+---------------------+----------------> tags
//!            |<-- behind its share: goes at once -->|  ahead: goes when there is nothing better to do
//!    nobody is further back, so
//!    nobody can save up more
//! ```

mod costs;
mod estimate;
mod lanes;
mod ledger;
mod queue;
mod tree;

#[cfg(test)]
mod tests;

pub use costs::Costs;
pub use queue::FairQueue;

use crate::time::Span;
use crate::virtual_clock::{Cores, Load};

/// How far a key can be back in virtual time, and so how much it can save up.
pub const CREDIT: Span = Span::from_secs(10);
/// So far back a key is behind its share. What lies between is a burst: for an address with a tenth of a core, half a second of CPU time.
pub const BEHIND: Span = Span::from_secs(5);
/// Clients that are ahead yield to others, but after so long one of their requests goes all the same.
pub const YIELD_MAX: Span = Span::from_secs(1);

/// What part of the backend each of a request's keys is due, in thousandths. Only their ratios matter to the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// One address (IPv4 /32, IPv6 /64).
    pub address_milli: u32,
    /// Its network (/24, /56).
    pub network_milli: u32,
    /// Its block (/16, /48).
    pub block_milli: u32,
}

impl Default for Shares {
    fn default() -> Self {
        Self { address_milli: 100, network_milli: 250, block_milli: 500 }
    }
}

/// How a queue is fair, and how much it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What each key is due.
    pub shares: Shares,
    /// What the backend has.
    pub cores: Cores,
    /// How many requests of an address may wait once it is ahead of its share; four times as many if they are light beside the others.
    pub per_key: usize,
    /// How many requests may wait.
    pub total: usize,
    /// How many keys are remembered.
    pub keys: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { shares: Shares::default(), cores: Cores::whole(1), per_key: 16, total: 1024, keys: 32_768 }
    }
}

/// From the widest to the narrowest: block, network, address.
const LEVELS: usize = 3;

/// Who sent a request: keyed hashes of its address, network and block, all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Of the address.
    pub address: u64,
    /// Of the network that the address is in.
    pub network: u64,
    /// Of the block that the network is in.
    pub block: u64,
}

impl Client {
    const fn keys(&self) -> [u64; LEVELS] {
        [self.block, self.network, self.address]
    }
}

/// What may be at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// What is there now.
    pub in_flight: Load,
    /// How many of those requests are from clients that were ahead.
    pub ahead: u32,
    /// What the requests there are expected to cost.
    pub costs: Costs,
    /// Up to here anybody may go: with so much the backend is busy.
    pub open: Load,
    /// Up to here those may go who are behind their share: so much the backend serves at once.
    pub serves: Load,
    /// Up to here those of them may go whose requests are light beside what is there: they are soon gone.
    pub limit: Load,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// A small number that no other waiting request has.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A request goes to the backend. To be given back to [`FairQueue::settle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// What was reserved for it; nothing for one that went in calm, without asking.
    pub reserved: Span,
    /// Whether its client is ahead of its share.
    pub ahead: bool,
    /// Whether it is light beside the others.
    pub light: bool,
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It goes at once.
    Goes(Pass),
    /// It waits.
    Waits(Ticket),
    /// It waits, and the second, further ahead of its share than anybody, is refused in its place.
    Displaces(Ticket, Ticket, Turned),
    /// It is refused: its address has enough waiting and is ahead of its share.
    KeyFull(Turned),
    /// It is refused: too many wait.
    Full(Turned),
}

/// A request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// When its turn would come, if nothing changes: who comes back then is not one of a crowd that was told the same.
    pub retry_after: Span,
}

/// Who waits for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Nobody.
    Nobody,
    /// Only clients that are ahead of their share.
    Ahead,
    /// Also clients behind their share.
    Behind,
}

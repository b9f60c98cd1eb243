//! The knowledge of a queue that is kept while the process is not running.
//!
//! Restored knowledge may be old, of another backend, or hostile. It is used as a first guess:
//!
//! - The in-flight limit counts as unproven. Until measurements have shown what the backend serves at once, as few
//!   requests go at once as from a new queue.
//! - A price lasts until the first request of its route ends. Before that, the route counts as unsettled: of all such
//!   routes, two requests may be in flight, or as many as there are cores. The first request of the route does not
//!   wait.
//! - If most of the first prices turn out to be wrong by a factor of eight, the rest of them are dropped.
//!
//! The cores that were found are not restored: a wrong number would charge clients too much, until there is enough
//! evidence against it.

use super::Queue;
use super::limit::ALWAYS_ALLOWED;
use crate::time::{Moment, Span};
use alloc::vec::Vec;

/// The bounds of a restored price.
const PRICE_MIN: Span = Span::from_nanos(1_000);
const PRICE_MAX: Span = Span::from_secs(10);

/// The knowledge about one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// How many requests like those of late may be in flight.
    pub in_flight: u32,
    /// The prices of routes and of parent paths, in no order.
    pub prices: Vec<LearnedPrice>,
}

/// The price of one route or parent path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPrice {
    /// Its keyed hash.
    pub key: u64,
    /// The mean cost.
    pub mean: Span,
    /// The mean deviation from that.
    pub deviation: Span,
}

impl Queue {
    /// How many prices a queue has room for.
    pub const PRICES_MAX: usize = 4096;

    /// The knowledge to keep.
    pub fn learned(&self) -> Learned {
        Learned { in_flight: self.limit.found, prices: self.prices.learned() }
    }

    /// Starts from the knowledge of an earlier queue. Call it before the first request arrives.
    pub fn restore(&mut self, learned: &Learned, now: Moment) {
        // It is as unproven as any other first number.
        self.limit.set(learned.in_flight.max(self.limit.at_least(ALWAYS_ALLOWED)), now);
        for &LearnedPrice { key, mean, deviation } in learned.prices.iter().take(Self::PRICES_MAX) {
            let mean = mean.clamp(PRICE_MIN, PRICE_MAX);
            self.prices.restore(LearnedPrice { key, mean, deviation: deviation.min(mean) });
        }
    }
}

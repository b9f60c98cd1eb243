//! The charges of a request that shared rules apply to: in this process, in leased slices (parts of a limit that this
//! process took from the store in advance), and in the store. They are settled or refunded when the request ends.

use std::sync::Arc;

use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::StoreTicket;
use super::lease::Leases;
use super::store_ticket::Taken;
use crate::limiter::Limiter;
use crate::ticket::Ticket;

/// The charges of a request. They can be settled with the limiter that created them or with its successor.
#[derive(Debug)]
#[must_use = "a request that is not settled stays in flight"]
pub struct SharedTicket {
    /// The charges in this process.
    pub here: Ticket,
    /// The charges in the store.
    pub(super) store: Option<StoreTicket>,
    /// The charges to leased slices.
    pub(super) slices: Option<Slices>,
}

impl Default for SharedTicket {
    /// A ticket without charges.
    fn default() -> Self {
        Self::from(Ticket::empty())
    }
}

impl From<Ticket> for SharedTicket {
    /// A ticket with charges in this process only.
    fn from(here: Ticket) -> Self {
        Self { here, store: None, slices: None }
    }
}

impl SharedTicket {
    /// Whether there are no charges, so that nothing must be settled.
    pub fn is_empty(&self) -> bool {
        self.here.is_empty() && self.store.is_none() && self.slices.is_none()
    }

    /// Settles a request that has ended and has cost `actual`.
    pub fn settle(self, limiter: &Limiter, actual: Toll, now: Moment) {
        limiter.settle(self.here, actual, now);
        if let Some(store) = self.store {
            store.settle(actual);
        }
    }

    /// Refunds a request that was not forwarded, less the amount paid back since.
    pub fn refund(self, limiter: &Limiter, now: Moment) {
        limiter.refund(self.here, now);
        if let Some(store) = self.store {
            store.refund();
        }
        if let Some(mut slices) = self.slices {
            slices.put_back();
        }
    }
}

/// The charges of a request to slices.
#[derive(Debug)]
pub(super) struct Slices {
    leases: Arc<Leases>,
    /// The number of requests that each slice was charged.
    count: u64,
    pub(super) taken: Vec<Taken>,
}

impl Slices {
    /// Returns all of them.
    fn put_back(&mut self) {
        for taken in self.taken.drain(..) {
            self.leases.put_back(taken, self.count);
        }
    }
}

/// Charges to slices while a request is being decided. They are returned if the decision fails or is
/// abandoned.
#[derive(Debug)]
pub(super) struct Taking(pub(super) Slices);

impl Taking {
    /// No charges yet, for a request with this count.
    pub(super) fn new(leases: &Arc<Leases>, count: u64) -> Self {
        Self(Slices { leases: Arc::clone(leases), count, taken: Vec::new() })
    }

    /// Keeps the charges, if there are any.
    pub(super) fn keep(mut self) -> Option<Slices> {
        let taken = core::mem::take(&mut self.0.taken);
        (!taken.is_empty()).then(|| Slices { leases: Arc::clone(&self.0.leases), count: self.0.count, taken })
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.put_back();
    }
}

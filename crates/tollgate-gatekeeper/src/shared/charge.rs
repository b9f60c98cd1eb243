//! What a request took, wherever it took it: here, out of slices, and in the store.

use std::sync::Arc;

use tollgate_core::limit::Charge;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::lease::Leases;
use super::{SharedRule, Ticket as StoreTicket};
use crate::limiter::Limiter;
use crate::ticket::Ticket;

/// What a request took. It may be settled with the limiter that made it or with one that took over from that.
#[derive(Debug)]
#[must_use = "a request that is not settled is at work for ever"]
pub struct SharedTicket {
    pub(super) here: Ticket,
    pub(super) store: Option<StoreTicket>,
    pub(super) slices: Option<Slices>,
}

impl SharedTicket {
    /// What was charged in this process.
    pub fn here_mut(&mut self) -> &mut Ticket {
        &mut self.here
    }
}

impl Default for SharedTicket {
    /// A ticket on which nothing was charged.
    fn default() -> Self {
        Self::from(Ticket::empty())
    }
}

impl From<Ticket> for SharedTicket {
    /// What was charged here alone.
    fn from(here: Ticket) -> Self {
        Self { here, store: None, slices: None }
    }
}

impl SharedTicket {
    /// The request has ended and has cost `actual`.
    pub fn settle(self, limiter: &Limiter, actual: Toll, now: Moment) {
        limiter.settle(self.here, actual, now);
        if let Some(store) = self.store {
            store.settle(actual);
        }
    }

    /// The request was not forwarded: what it took is given back, less what time has paid back since.
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

/// What a request took out of slices.
#[derive(Debug)]
pub(super) struct Slices {
    leases: Arc<Leases>,
    count: u64,
    taken: Vec<(Arc<SharedRule>, Vec<u8>, Charge)>,
}

impl Slices {
    /// Puts all of it back.
    fn put_back(&mut self) {
        for (rule, slot, charged) in self.taken.drain(..) {
            self.leases.put_back(&rule, slot, self.count, charged);
        }
    }
}

/// What is taken out of slices while a request is being decided: put back if that comes to nothing, or nobody waits for it.
#[derive(Debug)]
pub(super) struct Taking(Slices);

impl Taking {
    /// Nothing yet, for a request that counts so much.
    pub(super) fn new(leases: &Arc<Leases>, count: u64) -> Self {
        Self(Slices { leases: Arc::clone(leases), count, taken: Vec::new() })
    }

    /// Some was taken out of the slice in `slot`, which was `charged` as a whole.
    pub(super) fn add(&mut self, rule: &Arc<SharedRule>, slot: Vec<u8>, charged: Charge) {
        self.0.taken.push((Arc::clone(rule), slot, charged));
    }

    /// The request goes on with what was taken, if anything was.
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

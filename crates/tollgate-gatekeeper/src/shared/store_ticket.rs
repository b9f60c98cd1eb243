//! The charges that the store made for an admitted request. They are settled when the request ends, or refunded if it
//! was not forwarded.

use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::limit::{Charge, Limit};
use tollgate_core::rule::Situation;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::rule::{Operation, SharedRule, Work};
use super::script::Errand;
use super::store::StoreInner;

/// The charges of a request. Dropping it settles the request at its reserved cost.
#[derive(Debug)]
#[must_use = "a request ends when its ticket is dropped"]
pub struct StoreTicket {
    /// One for each shared rule that applied.
    pub(super) taken: Vec<Taken>,
    /// The cost that was charged.
    pub(super) toll: Toll,
    /// The identifier of the request in limits on requests in flight.
    pub(super) work: Work,
    pub(super) inner: Arc<StoreInner>,
}

/// A charge to one rule, and the slot (the name in the store) of the charged key.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) rule: Arc<SharedRule>,
    pub(super) slot: Vec<u8>,
    /// The charge on the store's clock.
    pub(super) charged: Charge,
}

/// The situation for claims outside of a decision, where neither time nor band matters.
const AFTERWARDS: Situation = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };

impl Taken {
    /// The operation on `toll`, which is all or a part of the cost `reserved` that was charged.
    fn errand(&self, operation: Operation, (toll, reserved): (Toll, Toll), work: Work) -> Errand {
        let claim = match operation {
            Operation::Refund | Operation::Surplus => {
                self.rule.refund_claim(operation, (toll, reserved), work, self.charged)
            }
            _ => self.rule.claim(operation, toll, work, &AFTERWARDS),
        };
        Errand { slot: self.slot.clone(), claim }
    }
}

impl StoreTicket {
    /// Settles a request that has ended and has cost `actual`.
    pub fn settle(mut self, actual: Toll) {
        self.end(actual);
    }

    /// Refunds a request that was not forwarded, less the amount paid back since.
    pub fn refund(mut self) {
        let taken = core::mem::take(&mut self.taken);
        self.inner.forget(self.work);
        let errands = taken.iter().map(|taken| taken.errand(Operation::Refund, (self.toll, self.toll), self.work));
        self.inner.send_without_reply(errands.collect());
    }

    /// The operations that renew the request in flight, for rules that count such requests.
    pub(super) fn renewals(&self) -> Vec<Errand> {
        let in_flight = self.taken.iter().filter(|taken| matches!(taken.rule.rule().limit, Limit::InFlight(_)));
        in_flight.map(|taken| taken.errand(Operation::Charge, (self.toll, self.toll), self.work)).collect()
    }

    fn end(&mut self, actual: Toll) {
        let taken = core::mem::take(&mut self.taken);
        if taken.is_empty() {
            return;
        }
        self.inner.forget(self.work);
        let settlements = taken.iter().filter_map(|taken| {
            let (operation, toll) = SharedRule::settlement(taken.rule.rule(), self.toll, actual)?;
            Some(taken.errand(operation, (toll, self.toll), self.work))
        });
        self.inner.send_without_reply(settlements.collect());
    }
}

impl Drop for StoreTicket {
    fn drop(&mut self) {
        self.end(self.toll);
    }
}

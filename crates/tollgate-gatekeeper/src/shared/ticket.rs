//! What a request took from the store, so that it can be given back or corrected when the request ends.

use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::limit::{Charge, Limit};
use tollgate_core::rule::Situation;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::rule::{Operation, SharedRule, Work};
use super::script::Errand;
use super::store::Inner;

/// What a request took. Dropping it ends the request at its reserved cost.
#[derive(Debug)]
#[must_use = "a request ends when its ticket is dropped"]
pub struct Ticket {
    pub(super) taken: Vec<Taken>,
    pub(super) toll: Toll,
    pub(super) work: Work,
    pub(super) inner: Arc<Inner>,
}

/// One rule that was charged, and the slot in which it was.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) rule: Arc<SharedRule>,
    pub(super) slot: Vec<u8>,
    /// The charge, on the store's clock.
    pub(super) charged: Charge,
}

/// A claim that is made outside of a decision: neither time nor band matter.
const AFTERWARDS: Situation = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };

impl Taken {
    /// What to tell the store about `toll`, of a request with the cost `reserved`.
    fn errand(&self, operation: Operation, (toll, reserved): (Toll, Toll), work: Work) -> Errand {
        let claim = match operation {
            Operation::Refund | Operation::Surplus => {
                self.rule.refund_claim(operation, (toll, reserved), work, self.charged)
            }
            _ => self.rule.claim(operation, toll, work, &AFTERWARDS),
        };
        Errand { slot: self.slot.clone(), claim }
    }

    fn is_at_work(&self) -> bool {
        matches!(self.rule.rule().limit, Limit::InFlight(_))
    }
}

impl Ticket {
    /// The request has ended and has cost `actual`.
    pub fn settle(mut self, actual: Toll) {
        self.end(actual);
    }

    /// The request was not forwarded: what it took is given back, less what time has paid back since.
    pub fn refund(mut self) {
        let taken = core::mem::take(&mut self.taken);
        self.inner.forget(self.work);
        let errands = taken.iter().map(|taken| taken.errand(Operation::Refund, (self.toll, self.toll), self.work));
        self.inner.tell(errands.collect());
    }

    /// What says that the request is still at work, if any rule counts those.
    pub(super) fn sign_of_life(&self) -> Vec<Errand> {
        let at_work = self.taken.iter().filter(|taken| taken.is_at_work());
        at_work.map(|taken| taken.errand(Operation::Charge, (self.toll, self.toll), self.work)).collect()
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
        self.inner.tell(settlements.collect());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(self.toll);
    }
}

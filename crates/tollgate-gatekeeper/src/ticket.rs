//! What a request that was let in must give back, or pay, when it ends.

use arrayvec::ArrayVec;
use tollgate_core::limit::Charge;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::hash::KeyHash;

/// So many rules can apply to one request. Further ones are not looked at, which is counted: see
/// [`Limiter::rules_passed_over`](crate::limiter::Limiter::rules_passed_over).
pub const RULES_AT_ONCE_MAX: usize = 16;

/// What a request was charged, and where. It is worth exactly one [`settle`](crate::limiter::Limiter::settle) or
/// [`refund`](crate::limiter::Limiter::refund), so it cannot be copied. It may be handed to a limiter that took over from the one
/// that made it.
#[must_use = "a request that is not settled is at work for ever"]
#[derive(Debug)]
pub struct Ticket<const N: usize = RULES_AT_ONCE_MAX> {
    pub(crate) toll: Toll,
    /// When it was charged.
    pub(crate) at: Moment,
    pub(crate) stubs: ArrayVec<Stub, N>,
}

/// One charge: which table, and where in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub {
    pub(crate) table: u32,
    pub(crate) hash: KeyHash,
    /// The record's mark right after the charge.
    pub(crate) mark: u64,
    /// Whether it was charged to the floor, together with others.
    pub(crate) on_floor: bool,
    /// Whether masters were told of it, so that they are to be told what becomes of it.
    pub(crate) told: bool,
}

impl Stub {
    /// The charge, on a ticket of `at`.
    pub(crate) const fn charged(&self, at: Moment) -> Charge {
        Charge { at, mark: self.mark }
    }
}

impl<const N: usize> Ticket<N> {
    /// A ticket on which nothing was charged.
    pub fn empty() -> Self {
        let toll = Toll { count: 0, cpu: tollgate_core::time::Span::ZERO };
        Self { toll, at: Moment::ZERO, stubs: ArrayVec::new() }
    }

    /// What the request was expected to cost.
    pub fn toll(&self) -> Toll {
        self.toll
    }

    /// Whether nothing was charged, so that nothing is to be settled.
    pub fn is_empty(&self) -> bool {
        self.stubs.is_empty()
    }
}

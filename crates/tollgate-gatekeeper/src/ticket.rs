//! The charges that a limiter made for an admitted request. They are settled when the request ends, or refunded if it
//! was not forwarded.

use arrayvec::ArrayVec;
use tollgate_core::limit::Charge;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::hash::KeyHash;

/// The maximum number of rules per request. Further ones are skipped and counted: see
/// [`Limiter::rules_passed_over`](crate::limiter::Limiter::rules_passed_over).
pub const RULES_AT_ONCE_MAX: usize = 16;

/// The charges of a request, at most `N`. It must be passed to exactly one
/// [`settle`](crate::limiter::Limiter::settle) or [`refund`](crate::limiter::Limiter::refund), so it cannot be
/// copied. A limiter that took over from the one that created it accepts it, too.
#[must_use = "a request that is not settled stays in flight"]
#[derive(Debug)]
pub struct Ticket<const N: usize = RULES_AT_ONCE_MAX> {
    /// The expected cost of the request.
    pub toll: Toll,
    /// The time of the charges.
    pub(crate) at: Moment,
    /// One for each rule that applied.
    pub(crate) charges: ArrayVec<TableCharge, N>,
}

/// A charge to one key of one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableCharge {
    /// The identifier of the rule's table.
    pub(crate) table: u32,
    /// The hash of the key.
    pub(crate) hash: KeyHash,
    /// [`Charge::mark`]: a value of the record right after the charge, by which a refund recognizes the charge.
    pub(crate) mark: u64,
    /// Whether it was charged to the overflow record.
    pub(crate) in_overflow: bool,
    /// Whether it was reported to masters, so that its end must be reported, too.
    pub(crate) is_reported: bool,
}

impl TableCharge {
    /// The charge, for a ticket of `at`.
    pub(crate) const fn charged(&self, at: Moment) -> Charge {
        Charge { at, mark: self.mark }
    }
}

impl<const N: usize> Ticket<N> {
    /// A ticket without charges.
    pub fn empty() -> Self {
        Self { toll: Toll::default(), at: Moment::ZERO, charges: ArrayVec::new() }
    }

    /// Whether there are no charges, so that nothing must be settled.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }
}

//! Rules of which some are shared: the store decides those where it answers, and this process where it does not.

use arrayvec::ArrayVec;
use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;

use super::sharing::{Explained, NoSharing, Share, Sharing};
use super::{SharedTicket, Store};
use crate::clock::Clock;
use crate::limiter::{Limiter, NoLimiter, Plan};
use crate::ticket::RULES_AT_ONCE_MAX;

/// Makes a [`SharedLimiter`].
#[derive(Debug)]
pub struct SharedPlan<'plan> {
    /// All rules.
    pub plan: Plan,
    /// How each of them is shared, in their order; those beyond its end are not.
    pub shares: &'plan [Option<Share>],
    /// What the names of slots begin with.
    pub prefix: &'plan str,
    /// The domain that the rules belong to.
    pub domain: &'plan str,
}

/// Why a limiter cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSharedLimiter {
    /// A table cannot be.
    Limiter(NoLimiter),
    /// A rule cannot be shared.
    Sharing(NoSharing),
}

impl core::fmt::Display for NoSharedLimiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Limiter(cause) => cause.fmt(formatter),
            Self::Sharing(cause) => cause.fmt(formatter),
        }
    }
}

impl core::error::Error for NoSharedLimiter {}

/// Rules of which some are shared.
pub struct SharedLimiter {
    limiter: Limiter,
    sharing: Sharing,
    clock: Clock,
}

impl core::fmt::Debug for SharedLimiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("SharedLimiter").field("sharing", &self.sharing).finish_non_exhaustive()
    }
}

impl SharedLimiter {
    /// A limiter for `plan`, with `store` for what is shared.
    pub fn new(plan: SharedPlan<'_>, store: Store, clock: Clock) -> Result<Self, NoSharedLimiter> {
        let SharedPlan { plan, shares, prefix, domain } = plan;
        let shares = shares.iter().copied().chain(core::iter::repeat(None));
        let rules: Vec<_> = plan.rules.iter().map(|(rule, _)| rule.clone()).zip(shares).collect();
        let limiter = Limiter::new(plan).map_err(NoSharedLimiter::Limiter)?;
        let sharing = Sharing::new(store, clock.clone(), (prefix, domain), rules).map_err(NoSharedLimiter::Sharing)?;
        Ok(Self { limiter, sharing, clock })
    }

    /// The rules with their tables here: what is known of callers without the store.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// How many requests are leased and not used yet: by so many may callers be ahead of their rules.
    pub fn leased(&self) -> u64 {
        self.sharing.leased()
    }

    /// The store that is asked.
    pub const fn store(&self) -> &Store {
        self.sharing.store()
    }

    /// Decides about a request that is expected to cost `toll`, and charges it if it goes on, held or not. Waits for the store, if
    /// that has to be asked, no longer than its deadline.
    pub async fn decide(&self, request: &impl Request, toll: Toll, band: Band) -> (Decision, SharedTicket) {
        if self.sharing.concerns(request) {
            return self.sharing.decide(&self.limiter, request, toll, band).await;
        }
        let (decision, ticket) = self.limiter.decide(request, toll, band, self.clock.now());
        (decision, ticket.into())
    }

    /// What each rule that applies would say, for people who ask why. Nothing is charged.
    pub async fn explain(
        &self,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> ArrayVec<Explained, RULES_AT_ONCE_MAX> {
        self.sharing.explain(&self.limiter, request, toll, band).await
    }

    /// The request with this ticket has ended and has cost `actual`.
    pub fn settle(&self, ticket: SharedTicket, actual: Toll) {
        ticket.settle(&self.limiter, actual, self.clock.now());
    }

    /// The request with this ticket did not take place.
    pub fn refund(&self, ticket: SharedTicket) {
        ticket.refund(&self.limiter, self.clock.now());
    }
}

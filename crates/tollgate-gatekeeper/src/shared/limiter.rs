//! A limiter with shared rules, for services that embed the gatekeeper: the store decides on these rules. While it does
//! not answer, this process decides, or refuses ([`OnTimeout::Refuse`](super::OnTimeout::Refuse)). The gate uses
//! [`Sharing`] directly.

use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;

use super::sharing::{Explained, Share, Sharing};
use super::{SharedTicket, Store};
use crate::build_error::BuildError;
use crate::clock::Clock;
use crate::limiter::{Limiter, Plan};

/// The parameters of a [`SharedLimiter`].
#[derive(Debug)]
pub struct SharedPlan<'plan> {
    /// All rules.
    pub plan: Plan,
    /// How each rule is shared, in the order of the rules. Rules beyond the end of this list are not shared.
    pub shares: &'plan [Option<Share>],
    /// The prefix of the names under which the store keeps records.
    pub prefix: &'plan str,
    /// The domain of the rules, a part of these names: rules of the same name in different domains share no records.
    pub domain: &'plan str,
}

/// A limiter of which some rules are shared through a [`Store`].
#[derive(Debug)]
pub struct SharedLimiter {
    limiter: Limiter,
    sharing: Sharing,
    clock: Clock,
}

impl SharedLimiter {
    /// A limiter for `plan`, with `store` for shared rules. An error if a rule cannot be built, shared or leased.
    pub fn new(plan: SharedPlan<'_>, store: Store, clock: Clock) -> Result<Self, BuildError> {
        let SharedPlan { plan, shares, prefix, domain } = plan;
        let shares = shares.iter().copied().chain(core::iter::repeat(None));
        let rules: Vec<_> = plan.rules.iter().map(|(rule, _)| rule.clone()).zip(shares).collect();
        let limiter = Limiter::new(plan)?;
        // There is no earlier value whose leases could be kept.
        let sharing = Sharing::new(&store, &clock, (prefix, domain), rules, None)?;
        Ok(Self { limiter, sharing, clock })
    }

    /// A limiter whose rules are all shared, under the names that a gate with default settings uses.
    ///
    /// A gate and this process share a rule if name, class, limit and escalation are the same and the gate's rule has
    /// `state = "redis"`.
    pub fn with_gates(plan: Plan, store: Store, clock: Clock) -> Result<Self, BuildError> {
        let shares = vec![Some(Share::default()); plan.rules.len()];
        Self::new(SharedPlan { plan, shares: &shares, prefix: "tollgate:", domain: "default" }, store, clock)
    }

    /// The rules with their local tables, which also record what the store admitted through this process. Rules other
    /// than those with [`OnTimeout::Refuse`](super::OnTimeout::Refuse) decide by them while the store does not answer.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The number of unused requests that this process has taken from the store in advance
    /// ([`Share::lease_millionths`]). It may admit that many in addition to the limits, which recover from the charge
    /// before these requests are used.
    pub fn leased(&self) -> u64 {
        self.sharing.leased()
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.sharing.store()
    }

    /// Decides on a request with the expected cost `toll`, and charges it if it is admitted or held. The call waits for
    /// the store up to [`Options::deadline`](super::Options::deadline), or [`Options::wait`](super::Options::wait) if a
    /// rule that applies has [`OnTimeout::Wait`](super::OnTimeout::Wait). The ticket must be settled or refunded: a
    /// request whose ticket is dropped stays in flight in this process.
    pub async fn decide(&self, request: &impl Request, toll: Toll, band: Band) -> (Decision, SharedTicket) {
        if self.sharing.concerns(request) {
            return self.sharing.decide(&self.limiter, request, toll, band).await;
        }
        let (decision, ticket) = self.limiter.decide(request, toll, band, self.clock.now());
        (decision, ticket.into())
    }

    /// The decision of each rule that applies, for explanation. Nothing is charged.
    pub async fn explain(&self, request: &impl Request, toll: Toll, band: Band) -> Vec<Explained> {
        let own = self.limiter.explain(request, toll, band, self.clock.now());
        self.sharing.ask_why(&self.limiter, own, request, toll, band).await
    }

    /// Settles a request that has ended and has cost `actual`.
    pub fn settle(&self, ticket: SharedTicket, actual: Toll) {
        ticket.settle(&self.limiter, actual, self.clock.now());
    }

    /// Refunds a request that was not forwarded.
    pub fn refund(&self, ticket: SharedTicket) {
        ticket.refund(&self.limiter, self.clock.now());
    }
}

//! The state of rules that is shared with other gates.
//!
//! Every rule has a table in the limiter of this gate, the local state. With `state = "redis"`, a rule is decided by a
//! Redis server, the store, or within a lease: a part of the limit that this gate took from the store in advance. The
//! gate records what the store has admitted in the local state. If the store does not respond, `on_timeout` selects
//! whether the request is refused or the local state decides. With `state = "master"`, a rule is decided from the local
//! state; the masters receive reports of these decisions and may change the table.

use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::link::Link;
use tollgate_gatekeeper::shared::{Authority, Explained, Share, SharedTicket, Sharing, Unanswered};

use super::redis::RedisLink;
use crate::settings::{Domain, RuleSettings, StateLocation};

/// The amounts that rules have charged for a request, in the local state, in the store and to leases. It is settled
/// with the measured cost when the request ends, or refunded if the request was not sent to a backend.
pub(crate) type Charge = SharedTicket;

/// The state outside this gate of the rules of a domain.
#[derive(Default)]
pub(crate) struct RemoteState {
    /// The rules with state in the store; none if no rule has `state = "redis"`.
    pub(crate) redis: Option<Sharing>,
    /// The link that reports decisions to the masters; none if no rule has `state = "master"`.
    pub(crate) masters: Option<Arc<Link>>,
}

/// The connections of the gate to the store and to the masters, as far as they are configured.
#[derive(Clone, Copy, Default)]
pub(crate) struct RemoteLinks<'a> {
    pub(crate) redis: Option<&'a RedisLink>,
    pub(crate) masters: Option<&'a Arc<Link>>,
}

impl RemoteState {
    /// The remote state of the rules of `domain`. At a reload, `before` is the previous one: if the store is the same,
    /// its leases are kept. Fails if a rule cannot be in the store or cannot be leased.
    pub(crate) fn new(
        domain: &Domain,
        links: RemoteLinks<'_>,
        clock: &Clock,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let has = |state: StateLocation| domain.rules.iter().any(|settings| settings.state == state);
        let masters = links.masters.filter(|_| has(StateLocation::Master)).cloned();
        let Some(link) = links.redis.filter(|_| has(StateLocation::Redis)) else {
            return Ok(Self { redis: None, masters });
        };
        let names = (link.settings.prefix.as_str(), domain.name.as_str());
        let rules = domain.rules.iter().map(|settings| (settings.rule.clone(), share(settings)));
        let before = before.and_then(|before| before.redis.as_ref());
        Ok(Self { redis: Some(Sharing::new(&link.store, clock, names, rules, before)?), masters })
    }

    /// Whether a rule with state in the store may apply to `request`: its conditions hold. If there is none, the local
    /// state decides alone.
    #[inline]
    pub(crate) fn concerns(&self, request: &impl Request) -> bool {
        self.redis.as_ref().is_some_and(|sharing| sharing.concerns(request))
    }

    /// The decision that each rule would take, without charging anything, for the admin API and the doctor. `local` are
    /// the decisions from the local state; the store replaces those of its rules, if it responds.
    pub(crate) async fn explain(
        &self,
        limiter: &Limiter,
        local: impl IntoIterator<Item = Decision>,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> Vec<Explained> {
        match &self.redis {
            Some(sharing) => sharing.ask_why(limiter, local, request, toll, band).await,
            None => local.into_iter().map(|decision| Explained { decision, by: Authority::Own }).collect(),
        }
    }

    /// Deletes the state of the request's key in the store, for the rules with state there whose index in the limiter
    /// `among` selects. Returns for each of these whether the store had any state, or why it did not respond.
    pub(crate) async fn forget(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        among: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Result<bool, Unanswered>)> {
        match &self.redis {
            Some(sharing) => sharing.forget(limiter, request, among).await,
            None => Vec::new(),
        }
    }
}

/// The options of a rule with state in the store; none for other rules.
fn share(settings: &RuleSettings) -> Option<Share> {
    let share = Share { lease_millionths: settings.lease_millionths, on_timeout: settings.on_timeout };
    (settings.state == StateLocation::Redis).then_some(share)
}

//! Rules whose state is not in this gate's memory alone.
//!
//! Every rule has a table in this gate's limiter. For some, others have a say too: the store that gates share, which is asked about each
//! request, and masters, which are told of it and may change the table. A request that no shared rule applies to is decided from
//! memory and does not notice that they exist; [`RemoteState::concerns`] tells them apart.

use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::shared::{Authority, Explained, Share, SharedTicket, Sharing, SharingError, Unanswered};

use super::masters::Masters;
use super::redis::RedisLink;
use crate::settings::{Domain, RuleSettings, State};

/// What a request was charged, here and remote_state.
pub(crate) type Charge = SharedTicket;

/// Who else has a say.
#[derive(Default)]
pub(crate) struct RemoteState {
    redis: Option<Sharing>,
    masters: Option<Arc<Masters>>,
}

/// The links to those who have a say.
#[derive(Clone, Copy, Default)]
pub(crate) struct RemoteLinks<'a> {
    /// To the store that gates share.
    pub(crate) redis: Option<&'a RedisLink>,
    /// To masters.
    pub(crate) masters: Option<&'a Arc<Masters>>,
}

impl RemoteState {
    /// Who has a say about the rules of `domain`. A store that stays the same is taken over with all that was taken from it.
    pub(crate) fn new(
        domain: &Domain,
        links: RemoteLinks<'_>,
        clock: &Clock,
        before: Option<&Self>,
    ) -> Result<Self, SharingError> {
        let has = |state: State| domain.rules.iter().any(|settings| settings.state == state);
        let masters = links.masters.filter(|_| has(State::Master)).cloned();
        let Some(link) = links.redis.filter(|_| has(State::Redis)) else {
            return Ok(Self { redis: None, masters });
        };
        let names = (link.prefix(), domain.name.as_str());
        let rules = domain.rules.iter().map(|settings| (settings.rule.clone(), share(settings)));
        let before = before.and_then(|before| before.redis.as_ref());
        let sharing = match before.filter(|before| before.store().is_same(link.store())) {
            Some(before) => before.succeeded_by(names, rules),
            None => Sharing::new(link.store().clone(), clock.clone(), names, rules),
        };
        Ok(Self { redis: Some(sharing?), masters })
    }

    /// Whether somebody else must be asked about `request`.
    #[inline]
    pub(crate) fn concerns(&self, request: &impl Request) -> bool {
        self.redis.as_ref().is_some_and(|sharing| sharing.concerns(request))
    }

    /// Decides about a request by all rules of `limiter`, and asks who else has a say. Whoever does not answer in time has none.
    pub(crate) async fn decide(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        toll: Toll,
        band: Band,
        clock: &Clock,
    ) -> (Decision, Charge) {
        match &self.redis {
            Some(sharing) => sharing.decide(limiter, request, toll, band).await,
            None => {
                let (decision, ticket) = limiter.decide(request, toll, band, clock.now());
                (decision, ticket.into())
            }
        }
    }

    /// What rules would say, of which `own` is what this gate says by itself. Nothing is charged.
    pub(crate) async fn explain(
        &self,
        limiter: &Limiter,
        own: impl IntoIterator<Item = Decision>,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> Vec<Explained> {
        match &self.redis {
            Some(sharing) => sharing.ask_why(limiter, own, request, toll, band).await,
            None => own.into_iter().map(|decision| Explained { decision, by: Authority::Own }).collect(),
        }
    }

    /// Makes the store forget a caller, by those of its rules that `among` picks by their places. Says by its place whether each knew of it, or why
    /// the store does not say.
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

    /// The masters that hear of decisions, if any do.
    pub(crate) fn masters(&self) -> Option<&Masters> {
        self.masters.as_deref()
    }

    /// The rules that are shared through a store, if any are.
    pub(crate) fn redis(&self) -> Option<&Sharing> {
        self.redis.as_ref()
    }
}

fn share(settings: &RuleSettings) -> Option<Share> {
    let share = Share { lease_millionths: settings.lease_millionths, on_timeout: settings.on_timeout };
    (settings.state == State::Redis).then_some(share)
}

//! The part of the tower layer that its services share: a limiter, a clock, and the link to masters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::HeaderValue;
use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::inputs::Inputs;
use tollgate_core::limit::{Limit, LimitInfo};
use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::build_error::BuildError;
use crate::clock::Clock;
use crate::limit_status;
use crate::limiter::{Limiter, Plan};
use crate::link::{Link, LinkSettings};
use crate::ticket::Ticket;

/// Rules with their state. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Keeper(pub(super) Arc<KeeperInner>);

#[derive(Debug)]
pub(super) struct KeeperInner {
    limiter: Arc<Limiter>,
    clock: Clock,
    link: Option<Link>,
    /// The headers and cookies that the rules use.
    pub(super) inputs: Inputs,
    /// Whether a rule has a budget, for which the time of requests must be measured.
    pub(super) has_budget: bool,
    /// Whether the charge of a rule must be settled at the end of a request.
    settles: bool,
    /// The `RateLimit-Policy` header of each rule; `None` if it is no valid header value.
    policies: Box<[Option<HeaderValue>]>,
    /// The number of requests that are held now.
    held: AtomicU32,
}

/// The reason why a keeper cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// A rule cannot be used.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The link to masters cannot be started.
    #[error("cannot start the link to masters: {0}")]
    Link(io::Error),
}

impl Keeper {
    /// A keeper without masters. The plan's `started` is replaced by the current time.
    pub fn new(plan: Plan) -> Result<Self, KeeperError> {
        Self::build(plan, None)
    }

    /// A keeper that reports to masters and applies their orders. It does not wait for a connection.
    pub fn linked(plan: Plan, link: LinkSettings) -> Result<Self, KeeperError> {
        Self::build(plan, Some(link))
    }

    fn build(plan: Plan, link: Option<LinkSettings>) -> Result<Self, KeeperError> {
        let clock = Clock::start();
        let has = |is: fn(&Limit) -> bool| plan.rules.iter().any(|(rule, _)| is(&rule.limit));
        let has_budget = has(|limit| matches!(limit, Limit::Budget(_)));
        let settles = has_budget || has(|limit| matches!(limit, Limit::InFlight(_)));
        let inputs = Inputs::of(plan.rules.iter().map(|(rule, _)| rule), None);
        let policies = plan.rules.iter().map(|(rule, _)| {
            let standing = limit_status::of(&rule.name, &rule.limit, LimitInfo::default());
            HeaderValue::from_maybe_shared(limit_status::policy(standing)).ok()
        });
        let policies = policies.collect();
        let mut limiter = Limiter::new(Plan { started: clock.now(), ..plan })?;
        let link = link.map(|settings| Link::start(settings, clock.clone()));
        let link = link.transpose().map_err(KeeperError::Link)?;
        if let Some(link) = &link {
            limiter.report_to(&link.relay);
        }
        let limiter = Arc::new(limiter);
        if let Some(link) = &link {
            let limiter = Arc::downgrade(&limiter);
            link.begin(Box::new(move |rule, identifier, instruction, now| {
                if let Some(limiter) = limiter.upgrade() {
                    limiter.obey(rule, identifier, instruction, now);
                }
            }));
        }
        let held = AtomicU32::new(0);
        Ok(Self(Arc::new(KeeperInner { limiter, clock, link, inputs, has_budget, settles, policies, held })))
    }

    /// The rules with their state.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// The link to masters, if there is one.
    pub fn link(&self) -> Option<&Link> {
        self.0.link.as_ref()
    }

    pub(super) fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// The policy header of the rule with index `place`.
    pub(super) fn policy(&self, place: usize) -> Option<&HeaderValue> {
        self.0.policies.get(place)?.as_ref()
    }

    /// Decides on a request. A request that would be held is refused if `held_max` requests are held already. The guard
    /// has its charges; a refused request has none, or the guard refunds them.
    pub(super) fn decide(&self, request: &impl Request, held_max: u32) -> (Decision, RequestGuard) {
        let now = self.now();
        let (mut decision, ticket) = self.0.limiter.decide(request, Toll::ONE, Band::Normal, now);
        let mut guard = RequestGuard {
            keeper: self.clone(),
            ticket: Some(ticket),
            is_held: false,
            is_begun: false,
            spent: Span::ZERO,
        };
        if let Verdict::Hold(until) = decision.verdict {
            let take = |held: u32| (held < held_max).then_some(held + 1);
            guard.is_held = self.0.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
            if !guard.is_held {
                decision.verdict = Verdict::Refuse(until);
            }
        }
        if let (Some(ticket), true) = (&mut guard.ticket, self.0.link.is_some()) {
            self.0.limiter.report(request, &decision, ticket, now);
        }
        (decision, guard)
    }
}

/// The charges of a request. Dropping the guard settles them if the request was forwarded to the service, and refunds
/// them otherwise.
pub(super) struct RequestGuard {
    pub(super) keeper: Keeper,
    /// `None` only while the guard is dropped.
    ticket: Option<Ticket>,
    /// Whether the request counts as held.
    is_held: bool,
    /// Whether the request was forwarded to the service.
    is_begun: bool,
    /// The time that the service spent on it.
    pub(super) spent: Span,
}

impl RequestGuard {
    /// Marks the request as forwarded to the service.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
        self.leave_hold();
    }

    fn leave_hold(&mut self) {
        if core::mem::take(&mut self.is_held) {
            self.keeper.0.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.leave_hold();
        let Some(ticket) = self.ticket.take() else { return };
        if self.is_begun && !self.keeper.0.settles {
            return;
        }
        let now = self.keeper.now();
        if self.is_begun {
            self.keeper.0.limiter.settle(ticket, Toll { count: 1, cpu: self.spent }, now);
        } else {
            self.keeper.0.limiter.refund(ticket, now);
        }
    }
}

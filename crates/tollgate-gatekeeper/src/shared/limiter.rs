//! Rules of which some are shared: the store decides those where it answers, and this process where it does not.
//!
//! Rules of this process come first: what they refuse costs the store nothing, so a flood that is stopped here is not passed on. What they took is
//! given back when the store refuses. A shared rule has a table here too. It is told what the store admitted, so
//! when the store is gone its callers are no strangers, and when the store is back it simply decides again: nobody is
//! blocked for what happened in between.

use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::request::Request;
use tollgate_core::rule::Situation;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::key::KeyText;
use super::{Asked, SharedRule, Store, Ticket as StoreTicket, Unshareable};
use crate::clock::Clock;
use crate::limiter::{Limiter, NoLimiter, Plan};
use crate::ticket::Ticket;

/// Makes a [`SharedLimiter`].
#[derive(Debug)]
pub struct SharedPlan<'plan> {
    /// All rules.
    pub plan: Plan,
    /// Which of them are shared, in their order; those beyond its end are not.
    pub shared: &'plan [bool],
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
    /// A rule, by its place, cannot be shared.
    Unshareable(usize, Unshareable),
}

impl core::fmt::Display for NoSharedLimiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Limiter(cause) => cause.fmt(formatter),
            Self::Unshareable(place, cause) => write!(formatter, "rule {}: {cause}", place + 1),
        }
    }
}

impl core::error::Error for NoSharedLimiter {}

/// Rules of which some are shared.
#[derive(Debug)]
pub struct SharedLimiter {
    own: Part,
    /// The shared rules as this process sees them.
    fallback: Part,
    shared: Vec<Arc<SharedRule>>,
    started: Moment,
    store: Store,
    clock: Clock,
}

/// A limiter for some of the rules.
struct Part {
    limiter: Limiter,
    /// Where its rules stand among all.
    places: Vec<usize>,
}

/// What a request took, here and in the store.
#[derive(Debug)]
#[must_use = "a request that is not settled is at work for ever"]
pub struct SharedTicket {
    own: Ticket,
    fallback: Ticket,
    store: Option<StoreTicket>,
}

impl core::fmt::Debug for Part {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Part").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Part {
    /// A limiter for the rules of `plan` that `is_ours` picks by their place.
    fn new(plan: &Plan, is_ours: impl Fn(usize) -> bool) -> Result<Self, NoLimiter> {
        let (places, rules): (Vec<_>, _) =
            plan.rules.iter().cloned().enumerate().filter(|(place, _)| is_ours(*place)).unzip();
        let limiter = Limiter::new(Plan { rules, ..plan.clone() })
            .map_err(|cause| NoLimiter { rule: places[cause.rule], ..cause })?;
        Ok(Self { limiter, places })
    }

    fn decide(&self, request: &impl Request, toll: Toll, band: Band, now: Moment) -> (Decision, Ticket) {
        let (decision, ticket) = self.limiter.decide(request, toll, band, now);
        (Decision { rule: decision.rule.map(|place| self.places[place]), ..decision }, ticket)
    }
}

/// What was taken here while the store is being asked: given back if the caller leaves meanwhile.
struct Reserved<'limiter> {
    limiter: &'limiter SharedLimiter,
    ticket: Option<Ticket>,
}

impl Reserved<'_> {
    fn keep(mut self) -> Ticket {
        self.ticket.take().unwrap_or_else(Ticket::empty)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.own.limiter.refund(ticket, self.limiter.clock.now());
        }
    }
}

impl SharedLimiter {
    /// A limiter for `plan`, with `store` for what is shared.
    pub fn new(plan: SharedPlan<'_>, store: Store, clock: Clock) -> Result<Self, NoSharedLimiter> {
        let SharedPlan { plan, shared, prefix, domain } = plan;
        let is_shared = |place: usize| shared.get(place).copied().unwrap_or(false);
        let own = Part::new(&plan, |place| !is_shared(place)).map_err(NoSharedLimiter::Limiter)?;
        let fallback = Part::new(&plan, is_shared).map_err(NoSharedLimiter::Limiter)?;
        let share = |place: &usize| {
            let rule = plan.rules[*place].0.clone();
            SharedRule::new(prefix, domain, rule)
                .map(Arc::new)
                .map_err(|cause| NoSharedLimiter::Unshareable(*place, cause))
        };
        let shared = fallback.places.iter().map(share).collect::<Result<_, _>>()?;
        Ok(Self { own, fallback, shared, started: plan.started, store, clock })
    }

    /// The store that is asked.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Decides about a request that is expected to cost `toll`, and charges it if it goes on, held or not. Waits for the store, if
    /// that has to be asked, no longer than its deadline.
    pub async fn decide(&self, request: &impl Request, toll: Toll, band: Band) -> (Decision, SharedTicket) {
        let now = self.clock.now();
        let (mut decision, own) = self.own.decide(request, toll, band, now);
        let reserved = Reserved { limiter: self, ticket: Some(own) };
        let keys = if decision.verdict.is_refusal() { Vec::new() } else { self.keys(request) };
        if keys.is_empty() {
            return (decision, SharedTicket { own: reserved.keep(), fallback: Ticket::empty(), store: None });
        }
        let asked: Vec<_> = keys
            .iter()
            .map(|(index, key)| Asked { place: self.fallback.places[*index], rule: &self.shared[*index], key })
            .collect();
        let situation = Situation { now, started: self.started, band };
        let answer = self.store.decide(&asked, toll, &situation).await;
        let now = self.clock.now();
        let (mut fallback, mut in_store) = (Ticket::empty(), None);
        match answer {
            Ok((answer, ticket)) => {
                let theirs = answer.on_clock(now);
                decision.tighten(theirs);
                if theirs.verdict.is_refusal() {
                    self.note(request, &theirs, now);
                } else {
                    fallback = self.fallback.decide(request, toll, band, now).1;
                }
                in_store = Some(ticket);
            }
            Err(_) => {
                let (ours, ticket) = self.fallback.decide(request, toll, band, now);
                decision.tighten(ours);
                fallback = ticket;
            }
        }
        if decision.verdict.is_refusal() {
            // Only a shared rule can have refused, so it took nothing; what others took is given back as `reserved` goes.
            return (decision, SharedTicket { own: Ticket::empty(), fallback, store: in_store });
        }
        (decision, SharedTicket { own: reserved.keep(), fallback, store: in_store })
    }

    /// The request with this ticket has ended and has cost `actual`.
    pub fn settle(&self, ticket: SharedTicket, actual: Toll) {
        let now = self.clock.now();
        self.own.limiter.settle(ticket.own, actual, now);
        self.fallback.limiter.settle(ticket.fallback, actual, now);
        if let Some(store) = ticket.store {
            store.settle(actual);
        }
    }

    /// The request with this ticket did not take place.
    pub fn refund(&self, ticket: SharedTicket) {
        let now = self.clock.now();
        self.own.limiter.refund(ticket.own, now);
        self.fallback.limiter.refund(ticket.fallback, now);
        if let Some(store) = ticket.store {
            store.refund();
        }
    }

    /// The shared rules that apply, with the request's key for each.
    fn keys(&self, request: &impl Request) -> Vec<(usize, Vec<u8>)> {
        let key = |(index, shared): (usize, &Arc<SharedRule>)| {
            let rule = shared.rule();
            let mut key = KeyText::default();
            let applies = rule.applies(request) && rule.class.write_key(request, &mut key);
            applies.then(|| (index, key.into_bytes()))
        };
        self.shared.iter().enumerate().filter_map(key).collect()
    }

    /// Keeps the name of a caller whom the store held or refused.
    fn note(&self, request: &impl Request, decision: &Decision, now: Moment) {
        let place = decision.rule.and_then(|place| self.fallback.places.iter().position(|other| *other == place));
        self.fallback.limiter.note_decided(request, &Decision { rule: place, ..*decision }, now);
    }
}

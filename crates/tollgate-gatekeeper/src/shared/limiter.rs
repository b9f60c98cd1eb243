//! Rules of which some are shared: the store decides those where it answers, and this process where it does not.
//!
//! Rules of this process come first: what they refuse costs the store nothing, so a flood that is stopped here is not passed on. What they took is
//! given back when the store refuses. A shared rule has a table here too. It is told what the store admitted, so
//! when the store is gone its callers are no strangers, and when the store is back it simply decides again: nobody is
//! blocked for what happened in between.
//!
//! Where a rule is leased, a slice of it is taken ahead and decided on from memory.

use std::sync::{Arc, Weak};

use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::limit::LimitInfo;
use tollgate_core::request::Request;
use tollgate_core::rule::Situation;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::key::KeyText;
use super::lease::{LEASE_LIFE, Leases, Slice, slice_of};
use super::{Answer, Asked, SharedRule, Store, Ticket as StoreTicket, Unanswered, Unshareable};
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
    /// Which part of a rule's room is taken ahead, in millionths, in the order of the rules; none where every request asks.
    pub leases: &'plan [Option<u32>],
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
    /// A rule, by its place, cannot be leased: only buckets and rates that are enforced can.
    Unleasable(usize),
}

impl core::fmt::Display for NoSharedLimiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Limiter(cause) => cause.fmt(formatter),
            Self::Unshareable(place, cause) => write!(formatter, "rule {}: {cause}", place + 1),
            Self::Unleasable(place) => {
                write!(formatter, "rule {}: only a bucket or a rate that is enforced can be leased", place + 1)
            }
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
    /// How much of each shared rule is taken ahead, in requests.
    slices: Vec<Option<u64>>,
    leases: Arc<Leases>,
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
    inside: Inside,
}

/// The slices that a request was inside of: which shared rule, and the name of its slot.
type Inside = Vec<(usize, Vec<u8>)>;

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
    inside: Inside,
    count: u64,
}

impl Reserved<'_> {
    fn keep(mut self) -> (Ticket, Inside) {
        (self.ticket.take().unwrap_or_else(Ticket::empty), core::mem::take(&mut self.inside))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.own.limiter.refund(ticket, self.limiter.clock.now());
        }
        self.limiter.put_back(core::mem::take(&mut self.inside), self.count);
    }
}

impl SharedLimiter {
    /// A limiter for `plan`, with `store` for what is shared.
    pub fn new(plan: SharedPlan<'_>, store: Store, clock: Clock) -> Result<Self, NoSharedLimiter> {
        let SharedPlan { plan, shared, leases, prefix, domain } = plan;
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
        let slice = |place: &usize| match leases.get(*place).copied().flatten() {
            None => Ok(None),
            Some(part) => slice_of(&plan.rules[*place].0, part).map(Some).ok_or(NoSharedLimiter::Unleasable(*place)),
        };
        let slices: Vec<_> = fallback.places.iter().map(slice).collect::<Result<_, _>>()?;
        let leases = Arc::new(Leases::new());
        if slices.iter().any(Option::is_some) {
            tokio::spawn(sweep(Arc::downgrade(&leases), store.clone(), clock.clone()));
        }
        Ok(Self { own, fallback, shared, slices, leases, started: plan.started, store, clock })
    }

    /// How many requests are leased and not used yet: by so many may callers be ahead of their rules.
    pub fn leased(&self) -> u64 {
        self.leases.leased()
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
        let mut reserved = Reserved { limiter: self, ticket: Some(own), inside: Vec::new(), count: toll.count };
        let mut keys = if decision.verdict.is_refusal() { Vec::new() } else { self.keys(request) };
        if keys.is_empty() {
            let (own, inside) = reserved.keep();
            return (decision, SharedTicket { own, fallback: Ticket::empty(), store: None, inside });
        }
        let situation = Situation { now, started: self.started, band };
        self.enter_slices(&mut keys, &mut reserved, &mut decision, toll, &situation).await;
        let (mut fallback, mut in_store) = (Ticket::empty(), None);
        match self.ask(&keys, toll, &situation).await {
            Ok(answer) => {
                let now = self.clock.now();
                let mut is_refused = false;
                if let Some((answer, ticket)) = answer {
                    let theirs = answer.on_clock(now);
                    decision.tighten(theirs);
                    is_refused = theirs.verdict.is_refusal();
                    in_store = Some(ticket);
                    if is_refused {
                        self.note(request, &theirs, now);
                    }
                }
                if !is_refused {
                    fallback = self.fallback.decide(request, toll, band, now).1;
                }
            }
            Err(_) => {
                let (ours, ticket) = self.fallback.decide(request, toll, band, self.clock.now());
                decision.tighten(ours);
                fallback = ticket;
            }
        }
        if decision.verdict.is_refusal() {
            // Only a shared rule can have refused, so it took nothing; what others took is given back as `reserved` goes.
            return (decision, SharedTicket { own: Ticket::empty(), fallback, store: in_store, inside: Vec::new() });
        }
        let (own, inside) = reserved.keep();
        (decision, SharedTicket { own, fallback, store: in_store, inside })
    }

    /// Decides those of `keys` that are inside a slice, or for which one can be had; the others stay.
    async fn enter_slices(
        &self,
        keys: &mut Vec<(usize, Vec<u8>)>,
        reserved: &mut Reserved<'_>,
        decision: &mut Decision,
        toll: Toll,
        situation: &Situation,
    ) {
        let mut outside = Vec::new();
        for (index, key) in core::mem::take(keys) {
            let slice = self.slices[index].filter(|slice| toll.count > 0 && toll.count < *slice);
            let Some(slice) = slice else {
                outside.push((index, key));
                continue;
            };
            let slot = self.shared[index].slot(&key);
            let info = match self.leases.take(&self.shared[index], &slot, toll.count, situation.now) {
                Slice::Inside(info) => Some(info),
                Slice::Fetch => self.fetch(index, &key, &slot, slice, toll.count, situation).await,
                Slice::Ask => None,
            };
            let Some(info) = info else {
                outside.push((index, key));
                continue;
            };
            reserved.inside.push((index, slot));
            decision.tighten(Decision {
                verdict: Verdict::Admit,
                reason: Reason::WithinLimit,
                rule: Some(self.fallback.places[index]),
                info: Some(info),
                level: 0,
                band: situation.band,
            });
        }
        *keys = outside;
    }

    /// Takes a slice and `count` out of it. Not when that would mean to wait.
    async fn fetch(
        &self,
        index: usize,
        key: &[u8],
        slot: &[u8],
        slice: u64,
        count: u64,
        situation: &Situation,
    ) -> Option<LimitInfo> {
        let rule = &self.shared[index];
        let asked = [Asked { place: self.fallback.places[index], rule, key }];
        let toll = Toll { count: slice, cpu: Span::ZERO };
        let (answer, ticket) = self.store.decide(&asked, toll, situation).await.ok()?;
        if answer.decision.verdict != Verdict::Admit || answer.decision.reason != Reason::WithinLimit {
            ticket.refund();
            return None;
        }
        // A slice has no end of its own to settle.
        drop(ticket);
        let info = answer.decision.info.unwrap_or_default();
        let left = slice - count;
        if !self.leases.put(slot, left, info, self.clock.now()) {
            self.store.give_back(rule, slot.to_vec(), left);
        }
        Some(LimitInfo { remaining: info.remaining.saturating_add(left), reset: Span::ZERO, ..info })
    }

    /// Asks the store about what is left to ask, if anything is.
    async fn ask(
        &self,
        keys: &[(usize, Vec<u8>)],
        toll: Toll,
        situation: &Situation,
    ) -> Result<Option<(Answer, StoreTicket)>, Unanswered> {
        if keys.is_empty() {
            return Ok(None);
        }
        let asked: Vec<_> = keys
            .iter()
            .map(|(index, key)| Asked { place: self.fallback.places[*index], rule: &self.shared[*index], key })
            .collect();
        self.store.decide(&asked, toll, situation).await.map(Some)
    }

    fn put_back(&self, inside: Inside, count: u64) {
        for (index, slot) in inside {
            if !self.leases.put_back(&slot, count, self.clock.now()) {
                self.store.give_back(&self.shared[index], slot, count);
            }
        }
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
        self.put_back(ticket.inside, ticket.own.toll().count);
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

impl Drop for SharedLimiter {
    /// What was taken ahead goes back.
    fn drop(&mut self) {
        self.leases.sweep(&self.store, Moment::MAX);
    }
}

/// Gives back slices that were not used up.
async fn sweep(leases: Weak<Leases>, store: Store, clock: Clock) {
    let mut ticks = tokio::time::interval(core::time::Duration::from(LEASE_LIFE) / 4);
    loop {
        ticks.tick().await;
        let Some(leases) = leases.upgrade() else { return };
        leases.sweep(&store, clock.now());
    }
}

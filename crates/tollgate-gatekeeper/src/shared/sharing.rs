//! The shared rules of a limiter, and decisions on requests that they apply to.
//!
//! Every rule has a local table, shared or not. The table of a shared rule records what the store admitted.
//! If the store fails, its callers are therefore known locally; when it returns, it decides again, and nobody
//! is blocked for requests in between.
//!
//! A leased rule takes a slice of its limit from the store in advance, and decides from memory while the slice lasts.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::limit::{Charge, LimitInfo};
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::key_text::KeyText;
use super::lease::{Leases, Slice, slice_of};
use super::shared_ticket::Taking;
use super::store_ticket::Taken;
use super::{AskedRule, SharedRule, SharedTicket, Store, Unanswered};
use crate::build_error::BuildError;
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::rule_names::RuleNames;

/// How one rule is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The fraction of the rule's limit that is leased, in millionths; `None` asks the store about every
    /// request.
    pub lease_millionths: Option<u32>,
    /// The action if the store does not decide in time.
    pub on_timeout: OnTimeout,
}

/// The action if the store does not decide in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Decide by the local state.
    #[default]
    Local,
    /// Wait longer for the answer ([`Options::wait`](super::Options::wait)), then decide by the local state.
    /// A store that is known to be down is not waited for.
    Wait,
    /// Refuse, also while the store is known to be down.
    Refuse,
}

/// The shared rules of a limiter.
#[derive(Debug)]
pub struct Sharing {
    rules: Box<[ActiveSharedRule]>,
    rule_names: RuleNames,
    /// Whether the rule at an index is shared.
    is_shared: Box<[bool]>,
    leases: Arc<Leases>,
}

/// The decision of a rule, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The decision.
    pub decision: Decision,
    /// Its source.
    pub by: Authority,
}

/// The source of a rule's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// This process decides on the rule.
    Own,
    /// The store decides on the rule, and has answered.
    Store,
    /// The store decides on the rule but did not answer: the local decision in its place.
    Instead(Unanswered),
}

/// A shared rule with its settings.
#[derive(Debug)]
struct ActiveSharedRule {
    /// The index of the rule in the limiter.
    place: usize,
    rule: Arc<SharedRule>,
    /// The size of a slice in requests; `None` if the rule is not leased.
    slice: Option<u64>,
    on_timeout: OnTimeout,
}

/// The time after which a request may be retried that is refused because the store does not decide. The store is probed
/// within that time.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The shared rules that apply to a request, with the slot of the request's key for each.
type Matches<'sharing> = Vec<(&'sharing ActiveSharedRule, Vec<u8>)>;

/// The question about a request, which is the same for all rules.
#[derive(Clone, Copy)]
struct RuleQuestion {
    toll: Toll,
    situation: Situation,
    /// The deadline of the store's answer.
    expires: Instant,
}

impl Sharing {
    /// Shares those of `rules` that have a [`Share`], through `store`. Slot names start with a prefix and the domain.
    /// After a reload, `before` is the previous value, whose leased slices are kept if the store is the same.
    pub fn new(
        store: &Store,
        clock: &Clock,
        (prefix, domain): (&str, &str),
        rules: impl IntoIterator<Item = (Rule, Option<Share>)>,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let leases = match before.filter(|before| Arc::ptr_eq(&before.store().inner, &store.inner)) {
            Some(before) => Arc::clone(&before.leases),
            None => Leases::new(store.clone(), clock.clone()),
        };
        let (mut active, mut is_shared) = (Vec::new(), Vec::new());
        for (place, (rule, share)) in rules.into_iter().enumerate() {
            is_shared.push(share.is_some());
            let Some(Share { lease_millionths, on_timeout }) = share else { continue };
            let slice = lease_millionths.map(|part| slice_of(&rule, part)).transpose();
            let slice = slice.map_err(|cause| BuildError::new(place, cause))?;
            let rule = SharedRule::new(prefix, domain, rule).map_err(|cause| BuildError::new(place, cause))?;
            active.push(ActiveSharedRule { place, rule: Arc::new(rule), slice, on_timeout });
        }
        let rule_names = RuleNames::new(active.iter().map(|active| &*active.rule.rule().name));
        Ok(Self { rules: active.into(), rule_names, is_shared: is_shared.into(), leases })
    }

    /// The number of requests that are leased and unused. Callers may exceed their rules by this number.
    pub fn leased(&self) -> u64 {
        self.leases.leased.load(Relaxed)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.leases.store
    }

    /// Whether a shared rule may apply to `request`. Otherwise the limiter alone decides.
    pub fn concerns(&self, request: &impl Request) -> bool {
        match request.rule_name() {
            Some(name) => self.rule_names.places(name).next().is_some(),
            None => self.rules.iter().any(|active| active.rule.rule().applies(request)),
        }
    }

    /// Decides on a request with the expected cost `toll` by all rules of `limiter`, and charges it if it is
    /// admitted or held. It waits for the store no longer than its deadline, or longer if a rule is set to
    /// wait.
    pub async fn decide(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> (Decision, SharedTicket) {
        let now = self.leases.clock.now();
        if let Some(refusal) = limiter.turn_away(|place| !self.shares(place), request, toll, band, now) {
            return (refusal, SharedTicket::default());
        }
        let mut matches = self.matches(request);
        let waits = matches.iter().any(|(active, _)| active.on_timeout == OnTimeout::Wait);
        let expires = self.leases.store.expiry(waits);
        let question = RuleQuestion { toll, situation: limiter.situation(band, now), expires };
        let mut slices = Taking::new(&self.leases, toll.count);
        let inside = self.enter_slices(&mut matches, &mut slices, question).await;
        let asked = match matches.is_empty() {
            true => Ok(None),
            false => self.leases.store.decide_by(asked(&matches), toll, &question.situation, expires).await.map(Some),
        };
        let now = self.leases.clock.now();
        if let (Err(_), Some(place)) = (&asked, refusing(&matches)) {
            return (refusal_by(place, band, now), SharedTicket::default());
        }
        // Rules without an answer are decided locally, in one step with the local rules.
        let is_left_to_us = |place| asked.is_err() && matches.iter().any(|(active, _)| active.place == place);
        let (mut decision, mut here) = match &asked {
            Ok(Some((answer, _))) if answer.decision.verdict.is_refusal() => {
                let decision = answer.on_clock(now);
                limiter.note_decided(request, &decision, now);
                return (decision, SharedTicket::default());
            }
            _ => limiter.decide_among(|place| !self.shares(place) || is_left_to_us(place), request, toll, band, now),
        };
        if !decision.verdict.is_refusal() {
            let others = |place| self.shares(place) && !is_left_to_us(place);
            limiter.remember(others, request, (band, now), &mut here);
        }
        let (answer, store) = asked.unwrap_or_default().unzip();
        if decision.verdict.is_refusal() {
            // Another request took the local quota while the store was asked.
            if let Some(ticket) = store {
                ticket.refund();
            }
            return (decision, SharedTicket::default());
        }
        let theirs = answer.map(|answer| answer.on_clock(now));
        if let Some(theirs) = &theirs {
            limiter.note_decided(request, theirs, now);
        }
        for other in inside.into_iter().chain(theirs) {
            decision.tighten(other);
        }
        (decision, SharedTicket { here, store, slices: slices.keep() })
    }

    /// Replaces the local decisions in `own` by the store's for shared rules, if it answers, even if the
    /// rules do not apply to `request`. Nothing is charged.
    pub async fn ask_why(
        &self,
        limiter: &Limiter,
        own: impl IntoIterator<Item = Decision>,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> Vec<Explained> {
        let situation = limiter.situation(band, self.leases.clock.now());
        let own = own.into_iter().map(|decision| Explained { decision, by: Authority::Own });
        let mut explained: Vec<_> = own.collect();
        let matches = keys(
            request,
            self.rules.iter().filter(|active| explained.iter().any(|entry| entry.decision.rule == Some(active.place))),
        );
        let answers = self.leases.store.explain(asked(&matches), toll, &situation).await;
        let now = self.leases.clock.now();
        for (place, answer) in answers {
            let Some(entry) = explained.iter_mut().find(|entry| entry.decision.rule == Some(place)) else { continue };
            *entry = match answer {
                Ok(answer) => Explained { decision: answer.on_clock(now), by: Authority::Store },
                Err(why) => Explained { by: Authority::Instead(why), ..*entry },
            };
        }
        explained
    }

    /// Removes the caller of `request` from the store, for the rules whose index `among` accepts. Returns by
    /// index whether there was a state, or why the store did not answer. The limiter is unchanged.
    pub async fn forget(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        among: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Result<bool, Unanswered>)> {
        let situation = limiter.situation(Band::Normal, self.leases.clock.now());
        let matches = keys(request, self.rules.iter().filter(|active| among(active.place)));
        self.leases.store.forget(asked(&matches), &situation).await
    }

    /// Whether the rule with this index is shared.
    fn shares(&self, place: usize) -> bool {
        self.is_shared.get(place).copied().unwrap_or(false)
    }

    /// The shared rules that apply, with the slot of the request's key for each.
    fn matches<'s>(&'s self, request: &impl Request) -> Matches<'s> {
        if let Some(name) = request.rule_name() {
            return keys(request, self.rule_names.places(name).map(|place| &self.rules[place]));
        }
        keys(request, self.rules.iter().filter(|active| active.rule.rule().applies(request)))
    }

    /// Decides on those of `matches` that are within a slice, or for which one can be taken, and removes them from
    /// `matches`. Returns their combined decision, if there are any.
    async fn enter_slices(
        &self,
        matches: &mut Matches<'_>,
        slices: &mut Taking,
        question: RuleQuestion,
    ) -> Option<Decision> {
        let mut decision: Option<Decision> = None;
        let mut outside = Vec::new();
        for (active, slot) in core::mem::take(matches) {
            let count = question.toll.count;
            let taken = match active.slice.filter(|slice| (1..*slice).contains(&count)) {
                None => None,
                Some(slice) => match self.leases.take(&active.rule, &slot, count, question.situation.now) {
                    Slice::Inside(info, charged) => Some((info, charged)),
                    Slice::Fetch => self.fetch(active, &slot, slice, question).await,
                    Slice::Ask => None,
                },
            };
            let Some((info, charged)) = taken else {
                outside.push((active, slot));
                continue;
            };
            slices.0.taken.push(Taken { rule: Arc::clone(&active.rule), slot, charged });
            let inside = Decision {
                reason: Reason::WithinLimit,
                rule: Some(active.place),
                info: Some(info),
                ..Decision::no_rule(question.situation.band)
            };
            decision.get_or_insert(inside).tighten(inside);
        }
        *matches = outside;
        decision
    }

    /// Takes a slice from the store, and the request's part of it. `None` if the store does not answer, or if there
    /// is no room for a whole slice now.
    async fn fetch(
        &self,
        active: &ActiveSharedRule,
        slot: &[u8],
        slice: u64,
        question: RuleQuestion,
    ) -> Option<(LimitInfo, Charge)> {
        let asked = vec![AskedRule { place: active.place, rule: Arc::clone(&active.rule), slot: slot.to_vec() }];
        let toll = Toll { count: slice, cpu: Span::ZERO };
        let (answer, ticket) =
            self.leases.store.decide_by(asked, toll, &question.situation, question.expires).await.ok()?;
        if answer.decision.verdict != Verdict::Admit || answer.decision.reason != Reason::WithinLimit {
            ticket.refund();
            return None;
        }
        let charged = ticket.taken.first()?.charged;
        // A slice has no end to settle.
        drop(ticket);
        let info = answer.decision.info.unwrap_or_default();
        let left = slice - question.toll.count;
        if !self.leases.put(slot, left, (info, charged), self.leases.clock.now()) {
            let taken = Taken { rule: Arc::clone(&active.rule), slot: slot.to_vec(), charged };
            self.leases.store.give_back(taken, left);
        }
        Some((LimitInfo { remaining: info.remaining.saturating_add(left), reset: Span::ZERO, ..info }, charged))
    }
}

/// Those of `rules` for which the request has a key, with the key's slot.
fn keys<'s>(request: &impl Request, rules: impl Iterator<Item = &'s ActiveSharedRule>) -> Matches<'s> {
    let key = |active: &'s ActiveSharedRule| {
        let mut key = KeyText::default();
        let has_key = active.rule.rule().class.write_key(request, &mut key);
        has_key.then(|| (active, active.rule.slot(&key.bytes)))
    };
    rules.filter_map(key).collect()
}

/// The index of the rule that refuses requests that the store does not decide on.
fn refusing(matches: &Matches<'_>) -> Option<usize> {
    let refuses =
        |active: &&ActiveSharedRule| active.on_timeout == OnTimeout::Refuse && active.rule.rule().mode == Mode::Enforce;
    matches.iter().map(|(active, _)| *active).find(refuses).map(|active| active.place)
}

/// A refusal that is not caused by the client: it has no limit state and does not count against the client.
fn refusal_by(place: usize, band: Band, now: Moment) -> Decision {
    let verdict = Verdict::Refuse(now + RETRY_AFTER);
    Decision { verdict, reason: Reason::StoreTimeout, rule: Some(place), ..Decision::no_rule(band) }
}

/// The rules to ask the store about.
fn asked(matches: &Matches<'_>) -> Vec<AskedRule> {
    let asked = |(active, slot): &(&ActiveSharedRule, Vec<u8>)| AskedRule {
        place: active.place,
        rule: Arc::clone(&active.rule),
        slot: slot.clone(),
    };
    matches.iter().map(asked).collect()
}

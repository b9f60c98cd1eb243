//! Which of a limiter's rules are shared, and how a request is decided that one of them applies to.
//!
//! Every rule has a table in the limiter, shared or not. The table of a shared rule is told what the store admitted, so
//! when the store is gone its callers are no strangers, and when the store is back it simply decides again: nobody is
//! blocked for what happened in between.
//!
//! Where a rule is leased, a slice of it is taken ahead and decided on from memory.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tokio::time::Instant;
use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::limit::{Charge, LimitInfo};
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::charge::Taking;
use super::key::KeyText;
use super::lease::{Leases, Slice, Unleasable, slice_of};
use super::{Answer, Asked, SharedRule, SharedTicket, Store, Ticket as StoreTicket, Unanswered, Unshareable};
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::ticket::RULES_AT_ONCE_MAX;

/// How one rule is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The part of the rule's room that is taken ahead, in millionths; none where every request asks the store.
    pub lease_millionths: Option<u32>,
    /// What happens to a request about which the store does not decide in time.
    pub on_timeout: OnTimeout,
}

/// What happens to a request about which the store does not decide in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// The local state decides.
    #[default]
    Local,
    /// The answer is waited for for longer ([`Options::wait`](super::Options::wait)); then the local state decides. A store that counts as
    /// gone is not waited for.
    Wait,
    /// The request is refused, also while the store counts as gone.
    Refuse,
}

/// Why a rule, by its place, cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSharing {
    /// The store cannot keep it exactly.
    Unshareable(usize, Unshareable),
    /// It cannot be leased.
    Unleasable(usize, Unleasable),
}

impl core::fmt::Display for NoSharing {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unshareable(place, cause) => write!(formatter, "rule {}: {cause}", place + 1),
            Self::Unleasable(place, cause) => write!(formatter, "rule {}: {cause}", place + 1),
        }
    }
}

impl core::error::Error for NoSharing {}

/// The shared ones among the rules of a limiter.
#[derive(Debug)]
pub struct Sharing {
    posts: Box<[Post]>,
    /// Whether the rule at a place is shared.
    is_shared: Box<[bool]>,
    leases: Arc<Leases>,
    store: Store,
    clock: Clock,
}

/// What a rule would say, and on whose knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What it would say.
    pub decision: Decision,
    /// Who knows it.
    pub by: Authority,
}

/// On whose knowledge somebody is told what a rule would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// This process decides by the rule.
    Own,
    /// The store does, and has said so.
    Store,
    /// The store does, but did not answer: what this process would decide in its place.
    Instead(Unanswered),
}

/// A shared rule on duty.
#[derive(Debug)]
struct Post {
    place: usize,
    rule: Arc<SharedRule>,
    /// How much of it is taken ahead, in requests.
    slice: Option<u64>,
    on_timeout: OnTimeout,
}

/// What clients are told to wait that are refused because the store does not decide: it is tried again within that time.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The shared rules that apply to a request, each with the request's key.
type Matches<'sharing> = Vec<(&'sharing Post, Vec<u8>)>;

/// What is asked about every rule.
#[derive(Clone, Copy)]
struct Question {
    toll: Toll,
    situation: Situation,
    expires: Instant,
}

impl Sharing {
    /// Shares those of `rules` for which there is a [`Share`], in their order, through `store`. The names of slots begin with `prefix` and
    /// `domain`.
    pub fn new(
        store: Store,
        clock: Clock,
        (prefix, domain): (&str, &str),
        rules: impl IntoIterator<Item = (Rule, Option<Share>)>,
    ) -> Result<Self, NoSharing> {
        let leases = Leases::new(store.clone(), clock.clone());
        Self::build(store, clock, leases, (prefix, domain), rules)
    }

    /// The shared ones among changed rules, on the same store: slices that were taken stay taken.
    pub fn succeeded_by(
        &self,
        (prefix, domain): (&str, &str),
        rules: impl IntoIterator<Item = (Rule, Option<Share>)>,
    ) -> Result<Self, NoSharing> {
        let leases = Arc::clone(&self.leases);
        Self::build(self.store.clone(), self.clock.clone(), leases, (prefix, domain), rules)
    }

    fn build(
        store: Store,
        clock: Clock,
        leases: Arc<Leases>,
        (prefix, domain): (&str, &str),
        rules: impl IntoIterator<Item = (Rule, Option<Share>)>,
    ) -> Result<Self, NoSharing> {
        let (mut posts, mut is_shared) = (Vec::new(), Vec::new());
        for (place, (rule, share)) in rules.into_iter().enumerate() {
            is_shared.push(share.is_some());
            let Some(Share { lease_millionths, on_timeout }) = share else { continue };
            let slice = match lease_millionths {
                None => None,
                Some(part) => Some(slice_of(&rule, part).map_err(|cause| NoSharing::Unleasable(place, cause))?),
            };
            let rule = SharedRule::new(prefix, domain, rule).map_err(|cause| NoSharing::Unshareable(place, cause))?;
            posts.push(Post { place, rule: Arc::new(rule), slice, on_timeout });
        }
        Ok(Self { posts: posts.into(), is_shared: is_shared.into(), leases, store, clock })
    }

    /// How many requests are leased and not used yet: by so many may callers be ahead of their rules.
    pub fn leased(&self) -> u64 {
        self.leases.leased()
    }

    /// The store that is asked.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Whether a shared rule may apply to `request`. If none does, the limiter alone decides.
    pub fn concerns(&self, request: &impl Request) -> bool {
        self.posts.iter().any(|post| post.rule.rule().applies(request))
    }

    /// Decides about a request that is expected to cost `toll` by all rules of `limiter`, and charges it if it goes on, held or not. Waits
    /// for the store, if that has to be asked, no longer than its deadline, or longer if a rule is to wait.
    pub async fn decide(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> (Decision, SharedTicket) {
        let now = self.clock.now();
        if let Some(refusal) = limiter.turn_away(|place| !self.shares(place), request, toll, band, now) {
            return (refusal, SharedTicket::default());
        }
        let mut matches = self.matches(request);
        let waits = matches.iter().any(|(post, _)| post.on_timeout == OnTimeout::Wait);
        let expires = if waits { self.store.late_expiry() } else { self.store.expiry() };
        let question = Question { toll, situation: limiter.situation(band, now), expires };
        let mut slices = Taking::new(&self.leases, toll.count);
        let inside = self.enter_slices(&mut matches, &mut slices, question).await;
        let asked = self.ask(&matches, question).await;
        let now = self.clock.now();
        if let (Err(_), Some(place)) = (&asked, refusing(&matches)) {
            return (refusal_by(place, band, now), SharedTicket::default());
        }
        // What nobody answered for is decided here, in one step with what is decided here anyway.
        let is_left_to_us = |place| asked.is_err() && matches.iter().any(|(post, _)| post.place == place);
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
            // Somebody took the room here while the store was asked.
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

    /// What each rule of `limiter` that applies would say, for people who ask why: the store for shared rules, as long as it answers. Nothing is
    /// charged.
    pub async fn explain(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> ArrayVec<Explained, RULES_AT_ONCE_MAX> {
        let own = limiter.explain(request, toll, band, self.clock.now());
        self.ask_why(limiter, own, request, toll, band).await.into_iter().collect()
    }

    /// What rules of `limiter` would say, of which `own` is what this process says by itself: the store for those that are shared, as long as it
    /// answers, whether or not they apply to `request`. Nothing is charged.
    pub async fn ask_why(
        &self,
        limiter: &Limiter,
        own: impl IntoIterator<Item = Decision>,
        request: &impl Request,
        toll: Toll,
        band: Band,
    ) -> Vec<Explained> {
        let situation = limiter.situation(band, self.clock.now());
        let own = own.into_iter().map(|decision| Explained { decision, by: Authority::Own });
        let mut explained: Vec<_> = own.collect();
        let matches = self.keys(request, |post| explained.iter().any(|said| said.decision.rule == Some(post.place)));
        let answers = self.store.explain(&asked(&matches), toll, &situation).await;
        let now = self.clock.now();
        for (place, answer) in answers {
            let Some(said) = explained.iter_mut().find(|said| said.decision.rule == Some(place)) else { continue };
            *said = match answer {
                Ok(answer) => Explained { decision: answer.on_clock(now), by: Authority::Store },
                Err(why) => Explained { by: Authority::Instead(why), ..*said },
            };
        }
        explained
    }

    /// Makes the store forget the caller of `request`, by those rules of `limiter` that `among` picks by their places. Says by its place whether each knew
    /// of it, or why the store does not say. The limiter itself is not told.
    pub async fn forget(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        among: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Result<bool, Unanswered>)> {
        let situation = limiter.situation(Band::Normal, self.clock.now());
        let matches = self.keys(request, |post| among(post.place));
        self.store.forget(&asked(&matches), &situation).await
    }

    fn shares(&self, place: usize) -> bool {
        self.is_shared.get(place).copied().unwrap_or(false)
    }

    /// The shared rules that apply, with the request's key for each.
    fn matches<'s>(&'s self, request: &impl Request) -> Matches<'s> {
        self.keys(request, |post| post.rule.rule().applies(request))
    }

    /// The shared rules that `among` picks, with the request's key for each.
    fn keys<'s>(&'s self, request: &impl Request, among: impl Fn(&Post) -> bool) -> Matches<'s> {
        let key = |post: &'s Post| {
            let mut key = KeyText::default();
            let has_key = among(post) && post.rule.rule().class.write_key(request, &mut key);
            has_key.then(|| (post, key.into_bytes()))
        };
        self.posts.iter().filter_map(key).collect()
    }

    /// Decides those of `matches` that are inside a slice, or for which one can be had; the others stay.
    async fn enter_slices(
        &self,
        matches: &mut Matches<'_>,
        slices: &mut Taking,
        question: Question,
    ) -> Option<Decision> {
        let mut decision: Option<Decision> = None;
        let mut outside = Vec::new();
        for (post, key) in core::mem::take(matches) {
            let count = question.toll.count;
            let Some(slice) = post.slice.filter(|slice| (1..*slice).contains(&count)) else {
                outside.push((post, key));
                continue;
            };
            let slot = post.rule.slot(&key);
            let taken = match self.leases.take(&post.rule, &slot, count, question.situation.now) {
                Slice::Inside(info, charged) => Some((info, charged)),
                Slice::Fetch => self.fetch(post, &key, &slot, slice, question).await,
                Slice::Ask => None,
            };
            let Some((info, charged)) = taken else {
                outside.push((post, key));
                continue;
            };
            slices.add(&post.rule, slot, charged);
            let inside = Decision {
                verdict: Verdict::Admit,
                reason: Reason::WithinLimit,
                rule: Some(post.place),
                info: Some(info),
                level: 0,
                band: question.situation.band,
            };
            decision.get_or_insert(inside).tighten(inside);
        }
        *matches = outside;
        decision
    }

    /// Takes a slice and what the request needs out of it. Not when that would mean to wait for room.
    async fn fetch(
        &self,
        post: &Post,
        key: &[u8],
        slot: &[u8],
        slice: u64,
        question: Question,
    ) -> Option<(LimitInfo, Charge)> {
        let asked = [Asked { place: post.place, rule: &post.rule, key }];
        let toll = Toll { count: slice, cpu: Span::ZERO };
        let (answer, ticket) = self.store.decide_by(&asked, toll, &question.situation, question.expires).await.ok()?;
        if answer.decision.verdict != Verdict::Admit || answer.decision.reason != Reason::WithinLimit {
            ticket.refund();
            return None;
        }
        let charged = ticket.taken.first()?.charged;
        // A slice has no end of its own to settle.
        drop(ticket);
        let info = answer.decision.info.unwrap_or_default();
        let left = slice - question.toll.count;
        if !self.leases.put(slot, left, (info, charged), self.clock.now()) {
            self.store.give_back(&post.rule, slot.to_vec(), left, charged);
        }
        Some((LimitInfo { remaining: info.remaining.saturating_add(left), reset: Span::ZERO, ..info }, charged))
    }

    /// Asks the store about what is left to ask, if anything is.
    async fn ask(
        &self,
        matches: &Matches<'_>,
        question: Question,
    ) -> Result<Option<(Answer, StoreTicket)>, Unanswered> {
        if matches.is_empty() {
            return Ok(None);
        }
        self.store.decide_by(&asked(matches), question.toll, &question.situation, question.expires).await.map(Some)
    }
}

/// The rule by which a request is refused that the store does not decide about, by its place.
fn refusing(matches: &Matches<'_>) -> Option<usize> {
    let refuses = |post: &&Post| post.on_timeout == OnTimeout::Refuse && post.rule.rule().mode == Mode::Enforce;
    matches.iter().map(|(post, _)| *post).find(refuses).map(|post| post.place)
}

/// A refusal that is not the caller's doing: it has no figures, and nobody counts it against the caller.
fn refusal_by(place: usize, band: Band, now: Moment) -> Decision {
    Decision {
        verdict: Verdict::Refuse(now + RETRY_AFTER),
        reason: Reason::StoreTimeout,
        rule: Some(place),
        info: None,
        level: 0,
        band,
    }
}

/// What to ask the store about.
fn asked<'m>(matches: &'m Matches<'_>) -> Vec<Asked<'m>> {
    matches.iter().map(|(post, key)| Asked { place: post.place, rule: &post.rule, key }).collect()
}

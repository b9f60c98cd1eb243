//! Rules with their tables: what decides in a running process.
//!
//! All rules that apply are looked at, then all are charged or none. Between the look and the charge nobody else may charge, or two
//! requests that each fit would both go in where one does. A lock around it all would make the limiter the bottleneck that it is there
//! to prevent, so only the lines concerned are locked, all at once, in one order for all threads, for some nanoseconds. And a
//! decision that changes nothing, as nearly all refusals are, locks nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use tollgate_core::band::Band;
use tollgate_core::decide::{Claim, apply, check_all};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::fast_rate::FastRate;
use tollgate_core::limit::Limit;
use tollgate_core::record::Record;
use tollgate_core::request::Request;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::front::Front;
use crate::hash::{KeyHash, Seed};
use crate::lock::Locked;
use crate::names::{Names, Throttled, Throttling};
use crate::relay::{Act, Relay};
use crate::sample::Sample;
use crate::seat::{Place, Seat};
use crate::table::{NoTable, Table, TableReport};
use crate::ticket::{RULES_AT_ONCE_MAX, Stub, Ticket};

/// The rules of one domain, with the state of all callers.
pub struct Limiter {
    pub(crate) posts: Box<[Post]>,
    started: Moment,
    names: Arc<Names>,
    pub(crate) passed_over: AtomicU64,
}

/// A rule on duty.
pub(crate) struct Post {
    pub(crate) rule: Rule,
    beat: Option<FastRate>,
    pub(crate) table: Arc<Table>,
    /// Where to tell masters about it, and what it is called there.
    pub(crate) relay: Option<(Relay, u16)>,
}

/// Makes a [`Limiter`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rules, each with the size of its table in bytes.
    pub rules: Vec<(Rule, usize)>,
    /// When warm-up begins.
    pub started: Moment,
    /// How keys are hashed: [`Seed::random`] unless there is a reason for another.
    pub seed: Seed,
    /// How many names of throttled callers are kept for people to see.
    pub names_max: usize,
}

/// A rule whose table cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLimiter {
    /// Which rule, by its place.
    pub rule: usize,
    /// Why.
    pub cause: NoTable,
}

impl core::fmt::Display for NoLimiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "rule {}: {}", self.rule + 1, self.cause)
    }
}

impl core::error::Error for NoLimiter {}

/// Rules by their places, with a key for each.
pub(crate) type Keys = ArrayVec<(usize, KeyHash), RULES_AT_ONCE_MAX>;
pub(crate) type Claims<'t> = ArrayVec<Claim<'t, Seat<'t>>, RULES_AT_ONCE_MAX>;
pub(crate) type Locks<'t> = ArrayVec<Locked<'t>, RULES_AT_ONCE_MAX>;

impl Limiter {
    /// A limiter to which everybody is new.
    pub fn new(plan: Plan) -> Result<Self, NoLimiter> {
        let names = Arc::new(Names::new(plan.names_max));
        Self::build(plan, names, |_| None)
    }

    /// A limiter for changed rules that takes over the state, and the names, of this one: all that a rule knows stays known unless its
    /// class, its limit or its escalation changed. A table that is taken over keeps its size, since everybody would be new to another. Both
    /// may decide at the same time, and tickets of the old one can be settled with the new one.
    pub fn succeeded_by(&self, plan: Plan) -> Result<Self, NoLimiter> {
        let started = self.started;
        Self::build(Plan { started, ..plan }, Arc::clone(&self.names), |rule| {
            let means_the_same = |post: &&Post| {
                let old = &post.rule;
                (&old.name, &old.class, &old.limit, &old.escalation)
                    == (&rule.name, &rule.class, &rule.limit, &rule.escalation)
            };
            self.posts.iter().find(means_the_same).map(|post| Arc::clone(&post.table))
        })
    }

    fn build(
        plan: Plan,
        names: Arc<Names>,
        inherited: impl Fn(&Rule) -> Option<Arc<Table>>,
    ) -> Result<Self, NoLimiter> {
        let post = |(place, (rule, bytes)): (usize, (Rule, usize))| {
            let table = match inherited(&rule) {
                Some(table) => table,
                None => Table::new(&rule, bytes, plan.seed).map_err(|cause| NoLimiter { rule: place, cause })?,
            };
            Ok(Post { beat: FastRate::of(&rule), rule, table, relay: None })
        };
        let posts = plan.rules.into_iter().enumerate().map(post).collect::<Result<_, _>>()?;
        Ok(Self { posts, started: plan.started, names, passed_over: AtomicU64::new(0) })
    }

    /// The rule at `place`.
    pub fn rule(&self, place: usize) -> Option<&Rule> {
        self.posts.get(place).map(|post| &post.rule)
    }

    /// All rules, in their order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.posts.iter().map(|post| &post.rule)
    }

    /// How the table of the rule at `place` is doing.
    pub fn table(&self, place: usize) -> Option<TableReport> {
        self.posts.get(place).map(|post| post.table.report())
    }

    /// How often a rule was not looked at because more than [`RULES_AT_ONCE_MAX`] applied to a request.
    pub fn rules_passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// Decides about a request that is expected to cost `toll`, and charges it if it goes on, held or not.
    pub fn decide(&self, request: &impl Request, toll: Toll, band: Band, now: Moment) -> (Decision, Ticket) {
        self.decide_among(|_| true, request, toll, band, now)
    }

    /// Decides by the rules whose place is among those given, as if there were no others.
    #[inline]
    pub(crate) fn decide_among(
        &self,
        among: impl Fn(usize) -> bool,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> (Decision, Ticket) {
        // Everything is written where it stays: what is returned is copied, with all the room in it, which takes longer than to decide.
        let situation = self.situation(band, now);
        let (mut keys, mut claims, mut locks) = (Keys::new(), Claims::new(), Locks::new());
        self.find_keys(among, request, &mut keys);
        self.claim_all(&keys, now, &mut claims);
        let decision = carry_through(&mut claims, toll, &situation, |claims| self.lock_all(claims, &mut locks));
        locks.clear();
        self.note(request, &decision, &keys, now);
        let mut outcome = (decision, Ticket { toll, at: now, stubs: ArrayVec::new() });
        for (claim, &(place, hash)) in claims.iter().zip(&keys) {
            outcome.1.stubs.extend(self.posts[place].stub(claim, hash));
        }
        outcome
    }

    /// Decides by the rule at `place` alone, about a caller whose key is at hand: the shortest way, for embedding where rules need not be
    /// matched. It tells the verdict and no figures, and keeps no name, since who asks has it. The time is asked for when the key's
    /// record is already on its way to the processor. `None` when there is no such rule.
    #[inline]
    pub fn decide_key(
        &self,
        place: usize,
        key: &[u8],
        toll: Toll,
        band: Band,
        now: impl FnOnce() -> Moment,
    ) -> Option<(Verdict, Ticket<1>)> {
        let post = self.posts.get(place)?;
        let hash = post.table.hasher().hash(key);
        let now = match post.beat {
            Some(beat) if toll.count == 1 => {
                let front = post.table.front_soon(hash);
                let now = now();
                if let Some(answer) = post.decide_by_beat(beat, front, hash, toll, now) {
                    return Some(answer);
                }
                now
            }
            _ => {
                post.table.prefetch(hash);
                now()
            }
        };
        Some(post.decide_any(hash, toll, &self.situation(band, now)))
    }

    /// What each rule that applies would say, for people who ask why. Nothing is charged, nobody takes a place.
    pub fn explain(
        &self,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> ArrayVec<Decision, RULES_AT_ONCE_MAX> {
        let situation = self.situation(band, now);
        let explain = |&(place, hash): &(usize, KeyHash)| self.posts[place].explain(place, hash, toll, &situation);
        let mut keys = Keys::new();
        self.find_keys(|_| true, request, &mut keys);
        keys.iter().map(explain).collect()
    }

    /// What the rule at `place` would say to a caller, whether or not it applies to `request`: of that, only the key is looked at. `None`
    /// when there is no such rule, or no such key.
    pub fn explain_rule(
        &self,
        place: usize,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> Option<Decision> {
        let post = self.posts.get(place)?;
        Some(post.explain(place, post.hash(request)?, toll, &self.situation(band, now)))
    }

    /// What the rule that throttled a caller would say to it now. Its name is not needed for that, which may have been cut. `None` when there is
    /// no such rule any more.
    pub fn explain_throttled(&self, caller: &Throttled, toll: Toll, band: Band, now: Moment) -> Option<Decision> {
        let place = self.place_of(caller)?;
        Some(self.posts[place].explain(place, caller.hash, toll, &self.situation(band, now)))
    }

    /// Makes the rule at `place` forget a caller, as if it had never been seen. Says whether there was something to forget: what is at work
    /// stays counted, and so does what a caller has in common with others.
    pub fn forget(&self, place: usize, request: &impl Request, now: Moment) -> bool {
        let post = self.posts.get(place);
        post.is_some_and(|post| post.hash(request).is_some_and(|hash| post.forget(hash, now)))
    }

    /// Makes the rule that throttled a caller forget it, as [`forget`](Self::forget) does, without its name.
    pub fn forget_throttled(&self, caller: &Throttled, now: Moment) -> bool {
        self.place_of(caller).is_some_and(|place| self.posts[place].forget(caller.hash, now))
    }

    /// Where the rule is that throttled a caller, if it is still there.
    fn place_of(&self, caller: &Throttled) -> Option<usize> {
        self.posts.iter().position(|post| post.table.id() == caller.table)
    }

    /// The request with this ticket has ended and has cost `actual`.
    pub fn settle<const N: usize>(&self, ticket: Ticket<N>, actual: Toll, now: Moment) {
        let (reserved, at) = (ticket.toll, ticket.at);
        // What only counts requests was paid when they came.
        let is_open = |stub: &&Stub| {
            self.post(stub).is_some_and(|post| matches!(post.rule.limit, Limit::InFlight(_) | Limit::Budget(_)))
        };
        for stub in ticket.stubs.iter().filter(is_open) {
            self.with_charged(stub, now, |post, seat| {
                let limit = &post.rule.limit;
                // What is missing is charged even to a key that has lost its place. What is too much is only given back where it
                // was taken: the floor stands for others too.
                if matches!(limit, Limit::InFlight(_)) || actual.cpu > reserved.cpu || seat.has_slot() {
                    limit.settle(seat, reserved, actual, stub.charged(at), now);
                }
                if matches!(limit, Limit::Budget(_)) {
                    let act = |clear| Act::Settlement { hash: stub.hash, cpu: actual.cpu, clear };
                    post.tell_fate(stub, seat, act);
                }
            });
        }
    }

    /// The request with this ticket was not forwarded. Each rule gives back what it charged, less what time has paid back since.
    pub fn refund<const N: usize>(&self, ticket: Ticket<N>, now: Moment) {
        for stub in &ticket.stubs {
            let charged = stub.charged(ticket.at);
            self.with_charged(stub, now, |post, seat| {
                let limit = &post.rule.limit;
                if seat.has_slot() || matches!(limit, Limit::InFlight(_)) {
                    limit.refund(seat, ticket.toll, charged, now);
                }
                let count = limit.returnable(ticket.toll, charged, now);
                if count > 0 {
                    post.tell_fate(stub, seat, |clear| Act::Return { hash: stub.hash, count, clear });
                }
            });
        }
    }

    /// The callers that were held or refused most, and what is left to them. While thousands are throttled every second, how often each was is
    /// nearly right.
    pub fn throttled(&self, most: usize, now: Moment) -> Vec<Throttled> {
        self.throttled_by(|_| true, most, now)
    }

    /// The same for some of the rules, by their places.
    pub fn throttled_by(&self, rules: impl Fn(usize) -> bool, most: usize, now: Moment) -> Vec<Throttled> {
        let places = self.posts.iter().enumerate().filter(|(place, _)| rules(*place));
        let tables: Vec<u32> = places.map(|(_, post)| post.table.id()).collect();
        let mut throttled = self.names.top(|table| tables.contains(&table), most, now);
        throttled.retain_mut(|caller| {
            let Some(place) = self.place_of(caller) else { return false };
            let post = &self.posts[place];
            let seat = post.table.seat(&post.rule, caller.hash, now);
            caller.rule = place;
            caller.info = post.rule.limit.info(&seat, now);
            true
        });
        throttled
    }

    pub(crate) fn situation(&self, band: Band, now: Moment) -> Situation {
        Situation { now, started: self.started, band }
    }

    /// Adds the rules among those given that apply, with the request's key for each, whose lines are on their way to the processor then.
    #[inline]
    pub(crate) fn find_keys(&self, among: impl Fn(usize) -> bool, request: &impl Request, keys: &mut Keys) {
        for (place, post) in self.posts.iter().enumerate() {
            if !among(place) || !post.rule.applies(request) {
                continue;
            }
            let Some(hash) = post.hash(request) else { continue };
            post.table.prefetch(hash);
            if keys.try_push((place, hash)).is_err() {
                self.passed_over.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Adds what the rules of `keys` claim.
    #[inline]
    pub(crate) fn claim_all<'t>(&'t self, keys: &Keys, now: Moment, claims: &mut Claims<'t>) {
        for &(place, hash) in keys {
            claims.push(self.posts[place].claim(place, hash, now));
        }
    }

    /// Locks the lines of all claims, in the order of their tables.
    #[inline]
    pub(crate) fn lock_all<'t>(&'t self, claims: &[Claim<'t, Seat<'t>>], locks: &mut Locks<'t>) {
        let table = |claim: &Claim<'t, Seat<'t>>| self.posts[claim.place()].table.id();
        // Tables are made in the order of their rules, unless a reload has taken some of them over.
        if claims.is_sorted_by_key(table) {
            claims.iter().for_each(|claim| locks.push(claim.record().lock()));
        } else {
            let mut order: ArrayVec<_, RULES_AT_ONCE_MAX> = claims.iter().collect();
            order.sort_unstable_by_key(|claim| table(claim));
            order.iter().for_each(|claim| locks.push(claim.record().lock()));
        }
    }

    /// The rule that `stub` was charged to. One that a reload has dropped has nothing left to settle.
    fn post(&self, stub: &Stub) -> Option<&Post> {
        self.posts.iter().find(|post| post.table.id() == stub.table)
    }

    /// Calls `change` with what `stub` was charged to, if it is still there and has anything to settle.
    fn with_charged(&self, stub: &Stub, now: Moment, change: impl FnOnce(&Post, &mut Seat<'_>)) {
        let Some(post) = self.post(stub) else { return };
        let mut seat = post.table.seat(&post.rule, stub.hash, now);
        let _held = seat.lock();
        seat.refresh();
        if stub.on_floor {
            seat.sit_on_floor();
        } else if matches!(post.rule.limit, Limit::InFlight(_)) && !seat.has_slot() {
            return;
        }
        change(post, &mut seat);
    }

    /// Keeps the name of a caller that was held or refused, or would have been.
    pub(crate) fn note(&self, request: &impl Request, decision: &Decision, keys: &[(usize, KeyHash)], now: Moment) {
        let Some(throttling) = Throttling::of(decision) else { return };
        let Some(place) = decision.rule else { return };
        let Some(&(_, hash)) = keys.iter().find(|key| key.0 == place) else { return };
        let Some(times) = times_to_note(now) else { return };
        let post = &self.posts[place];
        self.names.note(post.table.id(), hash, throttling, times, now, |name| {
            post.rule.class.write_key(request, name);
        });
    }
}

/// How often whoever is throttled now counts as throttled, for people to see; none if not at all.
fn times_to_note(now: Moment) -> Option<u64> {
    thread_local!(static SAMPLE: Sample = const { Sample::new() });
    SAMPLE.with(|sample| sample.times(now))
}

impl Post {
    /// Where a request's key is, if it has one.
    #[inline]
    fn hash(&self, request: &impl Request) -> Option<KeyHash> {
        let mut pieces = self.table.hasher().pieces();
        if !self.rule.class.write_key(request, &mut pieces) {
            return None;
        }
        Some(self.hash_of_cut(request, pieces.bytes()).unwrap_or_else(|| pieces.finish()))
    }

    /// What the rule would say to a key; it is at `place`.
    fn explain(&self, place: usize, hash: KeyHash, toll: Toll, situation: &Situation) -> Decision {
        let mut seat = self.claim(place, hash, situation.now).into_record();
        let held = seat.lock();
        seat.refresh();
        let check = self.rule.check(&seat, toll, situation);
        let decision = self.rule.decision(place, &check, &seat, situation);
        drop(held);
        decision
    }

    /// Makes the rule forget a key; whether there was something to forget.
    fn forget(&self, hash: KeyHash, now: Moment) -> bool {
        let mut seat = self.table.seat(&self.rule, hash, now);
        let _held = seat.lock();
        seat.refresh();
        if matches!(self.rule.limit, Limit::InFlight(_)) || !seat.has_slot() {
            return false;
        }
        seat.set_aux(0);
        (0..self.rule.words()).for_each(|word| seat.set_word(word, 0));
        true
    }

    #[inline]
    pub(crate) fn claim(&self, place: usize, hash: KeyHash, now: Moment) -> Claim<'_, Seat<'_>> {
        Claim::new(place, &self.rule, self.table.seat(&self.rule, hash, now))
    }

    /// Decides about a key that has a place in the front of its line, or can have one because nothing else matters there; `None` when that
    /// is not so, or when another thread came between.
    #[inline(always)]
    fn decide_by_beat(
        &self,
        beat: FastRate,
        front: Front<'_>,
        hash: KeyHash,
        toll: Toll,
        now: Moment,
    ) -> Option<(Verdict, Ticket<1>)> {
        let version = front.lock().version();
        let known = front.find(hash.fingerprint());
        let (slot, paid_at) = match known {
            Some(slot) => (slot, Moment::from_nanos(front.state(slot).load(Ordering::Relaxed))),
            None => {
                let (slot, clear_at) = front.best();
                let is_fresh = clear_at <= now && front.hindsight() <= now && !front.back_matters(now);
                is_fresh.then_some((slot, Moment::ZERO))?
            }
        };
        let (verdict, spent) = beat.decide(paid_at, now);
        if verdict.is_refusal() {
            let nothing = || Ticket { toll, at: now, stubs: ArrayVec::new() };
            return front.lock().is_still(version).then(|| (verdict, nothing()));
        }
        let held = front.lock().take_still(version)?;
        if known.is_none() {
            front.assign(slot, hash.fingerprint(), spent);
        } else {
            front.state(slot).store(spent.as_nanos(), Ordering::Relaxed);
        }
        drop(held);
        let stub = Stub { table: self.table.id(), hash, mark: spent.as_nanos(), on_floor: false, told: false };
        Some((verdict, Ticket { toll, at: now, stubs: ArrayVec::from([stub]) }))
    }

    /// Decides about any key, by any rule.
    #[inline(never)]
    fn decide_any(&self, hash: KeyHash, toll: Toll, situation: &Situation) -> (Verdict, Ticket<1>) {
        let mut claims = [self.claim(0, hash, situation.now)];
        let decision = carry_through(&mut claims, toll, situation, |claims| claims[0].record().lock());
        let stubs = claims.iter().filter_map(|claim| self.stub(claim, hash)).collect();
        (decision.verdict, Ticket { toll, at: situation.now, stubs })
    }

    /// The key with `hash` is blocked elsewhere.
    #[cfg(feature = "redis")]
    pub(crate) fn block(&self, hash: KeyHash, level: u8, until: Moment, now: Moment) {
        let mut seat = self.table.seat(&self.rule, hash, now);
        let _held = seat.lock();
        seat.refresh();
        self.rule.block(&mut seat, level, until);
    }

    /// What is to be settled of `claim`.
    pub(crate) fn stub(&self, claim: &Claim<'_, Seat<'_>>, hash: KeyHash) -> Option<Stub> {
        let on_floor = claim.record().place() == Place::Floor;
        let mark = claim.mark()?;
        if on_floor {
            self.table.count_shared();
        }
        Some(Stub { table: self.table.id(), hash, mark, on_floor, told: false })
    }
}

/// Looks, and carries it out: without any lock if nothing changes, else under what `lock` takes.
#[inline]
pub(crate) fn carry_through<'t, L>(
    claims: &mut [Claim<'t, Seat<'t>>],
    toll: Toll,
    situation: &Situation,
    lock: impl FnOnce(&[Claim<'t, Seat<'t>>]) -> L,
) -> Decision {
    let mut summary = check_all(claims, toll, situation);
    if !summary.changes() {
        let decision = apply(claims, summary, toll, situation);
        if claims.iter().all(|claim| claim.record().is_current()) {
            return decision;
        }
    }
    let held = lock(claims);
    let changed = claims.iter_mut().fold(false, |changed, claim| claim.record_mut().refresh() | changed);
    if changed {
        summary = check_all(claims, toll, situation);
    }
    let decision = apply(claims, summary, toll, situation);
    drop(held);
    decision
}

//! The limiter: rules with their tables. It decides on requests in a gate, in `tollgate replay` and in services that
//! embed the gatekeeper.
//!
//! All rules that apply are checked, then all or none are charged. No other thread may charge between the
//! check and the charge; otherwise two requests could both use the last free quota. One lock around
//! everything would be a bottleneck, so only the rows concerned are locked, all together, in one order for
//! all threads, for some nanoseconds. A decision that changes nothing, such as most refusals, takes no lock.

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

use crate::build_error::BuildError;
use crate::hash::{KeyHash, Seed};
use crate::hot_slots::HotSlots;
use crate::key_record::{KeyRecord, Location};
use crate::lock::Locked;
use crate::names::{Names, Throttled};
use crate::relay::{EventKind, Relay};
use crate::rule_names::RuleNames;
use crate::sample::Sample;
use crate::table::{Table, TableReport};
use crate::ticket::{RULES_AT_ONCE_MAX, TableCharge, Ticket};

/// Rules, with the state of all callers.
pub struct Limiter {
    pub(crate) rules: Box<[ActiveRule]>,
    pub(crate) rule_names: RuleNames,
    /// The start of the warm-up: see [`Plan::started`].
    pub(crate) started: Moment,
    /// The names of throttled callers, for display.
    pub(crate) names: Arc<Names>,
    /// See [`Limiter::rules_passed_over`].
    pub(crate) rules_skipped: AtomicU64,
}

/// A rule with its table.
pub(crate) struct ActiveRule {
    pub(crate) rule: Rule,
    /// The fast path, if the rule is simple enough.
    pub(crate) fast_rate: Option<FastRate>,
    pub(crate) table: Arc<Table>,
    /// The relay to masters, and the rule's index there; `None` if the rule is not reported.
    pub(crate) relay: Option<(Relay, u16)>,
}

/// The parameters of a [`Limiter`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rules, each with the size of its table in bytes.
    pub rules: Vec<(Rule, usize)>,
    /// The start of the warm-up, a time in which only ceilings apply: see [`Rule::warmup`].
    pub started: Moment,
    /// The hash seed: [`Seed::random`] unless there is a reason for another.
    pub seed: Seed,
    /// The maximum number of throttled callers whose names are kept for display.
    pub names_max: usize,
}

impl core::fmt::Debug for Limiter {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Limiter").finish_non_exhaustive()
    }
}

/// The indices of the rules that apply to a request, with the hash of the request's key for each.
pub(crate) type Keys = ArrayVec<(usize, KeyHash), RULES_AT_ONCE_MAX>;
/// The records that a request is checked against, one per rule that applies.
pub(crate) type Claims<'t> = ArrayVec<Claim<'t, KeyRecord<'t>>, RULES_AT_ONCE_MAX>;
/// The locks of the rows of these records.
pub(crate) type Locks<'t> = ArrayVec<Locked<'t>, RULES_AT_ONCE_MAX>;

impl Limiter {
    /// A limiter without state.
    pub fn new(plan: Plan) -> Result<Self, BuildError> {
        let names = Arc::new(Names::new(plan.names_max));
        Self::build(plan, names, |_| None)
    }

    /// A limiter for changed rules that takes over the state and names of this one; `plan.started` and
    /// `plan.names_max` are not used. A rule keeps its state unless its name, class, limit or escalation changed. An
    /// inherited table keeps its size, because a new one would be empty. Both limiters may decide concurrently, and
    /// tickets of the old one can be settled with the new one.
    pub fn succeeded_by(&self, plan: Plan) -> Result<Self, BuildError> {
        let started = self.started;
        Self::build(Plan { started, ..plan }, Arc::clone(&self.names), |rule| {
            let means_the_same = |active: &&ActiveRule| {
                let old = &active.rule;
                (&old.name, &old.class, &old.limit, &old.escalation)
                    == (&rule.name, &rule.class, &rule.limit, &rule.escalation)
            };
            self.rules.iter().find(means_the_same).map(|active| Arc::clone(&active.table))
        })
    }

    /// A limiter for `plan`, with the tables that `inherited` returns for some rules.
    fn build(
        plan: Plan,
        names: Arc<Names>,
        inherited: impl Fn(&Rule) -> Option<Arc<Table>>,
    ) -> Result<Self, BuildError> {
        let active = |(place, (rule, bytes)): (usize, (Rule, usize))| {
            let table = match inherited(&rule) {
                Some(table) => table,
                None => Table::new(&rule, bytes, plan.seed).map_err(|cause| BuildError::new(place, cause))?,
            };
            Ok(ActiveRule::new(rule, table))
        };
        let rule_names = RuleNames::new(plan.rules.iter().map(|(rule, _)| &*rule.name));
        let rules = plan.rules.into_iter().enumerate().map(active).collect::<Result<_, _>>()?;
        Ok(Self { rules, rule_names, started: plan.started, names, rules_skipped: AtomicU64::new(0) })
    }

    /// The rule with index `place`.
    pub fn rule(&self, place: usize) -> Option<&Rule> {
        self.rules.get(place).map(|active| &active.rule)
    }

    /// The rules with this name, in their order, found by binary search.
    pub fn rules_named(&self, name: &str) -> impl Iterator<Item = &Rule> {
        self.rule_names.places(name).map(|place| &self.rules[place].rule)
    }

    /// All rules, in their order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|active| &active.rule)
    }

    /// The size and pressure of the table of the rule with index `place`.
    pub fn table(&self, place: usize) -> Option<TableReport> {
        self.rules.get(place).map(|active| active.table.report())
    }

    /// The number of times that a rule was skipped because more than [`RULES_AT_ONCE_MAX`] applied to a
    /// request.
    pub fn rules_passed_over(&self) -> u64 {
        self.rules_skipped.load(Ordering::Relaxed)
    }

    /// Decides on a request with the expected cost `toll`, and charges it if it is admitted or held.
    pub fn decide(&self, request: &impl Request, toll: Toll, band: Band, now: Moment) -> (Decision, Ticket) {
        self.decide_among(|_| true, request, toll, band, now)
    }

    /// Decides by the rules whose index `among` accepts, as if there were no others.
    #[inline]
    pub fn decide_among(
        &self,
        among: impl Fn(usize) -> bool,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> (Decision, Ticket) {
        // The arrays are filled in place, because returning them by value would copy their full capacity,
        // which takes longer than the decision.
        let situation = self.situation(band, now);
        let (mut keys, mut claims, mut locks) = (Keys::new(), Claims::new(), Locks::new());
        self.find_keys(among, request, &mut keys);
        self.claim_all(&keys, now, &mut claims);
        let decision = decide_claims(&mut claims, toll, &situation, |claims| self.lock_all(claims, &mut locks));
        locks.clear();
        self.note(request, &decision, &keys, now);
        let mut outcome = (decision, Ticket { toll, at: now, charges: ArrayVec::new() });
        for (claim, &(place, hash)) in claims.iter().zip(&keys) {
            outcome.1.charges.extend(self.rules[place].charge_of(claim, hash));
        }
        outcome
    }

    /// Decides by the rule with index `place` alone, for a caller with a known key. This is the fastest path, for
    /// services that need no rule matching. It returns only the verdict and keeps no name. `now` reads the clock; it
    /// is called after the key's row is prefetched. `None` if there is no such rule.
    #[inline]
    pub fn decide_key(
        &self,
        place: usize,
        key: &[u8],
        toll: Toll,
        band: Band,
        now: impl FnOnce() -> Moment,
    ) -> Option<(Verdict, Ticket<1>)> {
        let active = self.rules.get(place)?;
        let hash = active.table.hasher.hash(key);
        let now = match active.fast_rate {
            Some(fast_rate) if toll.count == 1 => {
                let hot_slots = active.table.hot_slots_soon(hash);
                let now = now();
                if let Some(answer) = active.decide_fast(fast_rate, hot_slots, hash, toll, now) {
                    return Some(answer);
                }
                now
            }
            _ => {
                active.table.prefetch(hash);
                now()
            }
        };
        Some(active.decide_general(hash, toll, &self.situation(band, now)))
    }

    /// The decision of each rule that applies, for explanation. Nothing is charged and no slot is assigned.
    pub fn explain(
        &self,
        request: &impl Request,
        toll: Toll,
        band: Band,
        now: Moment,
    ) -> ArrayVec<Decision, RULES_AT_ONCE_MAX> {
        let situation = self.situation(band, now);
        let explain = |&(place, hash): &(usize, KeyHash)| self.rules[place].explain(place, hash, toll, &situation);
        let mut keys = Keys::new();
        self.find_keys(|_| true, request, &mut keys);
        keys.iter().map(explain).collect()
    }

    /// The decision of the rule with index `place` on one request of the key of `request`, even if the rule does not
    /// apply to it. `None` if there is no such rule or key.
    pub fn explain_rule(&self, place: usize, request: &impl Request, band: Band, now: Moment) -> Option<Decision> {
        let active = self.rules.get(place)?;
        Some(active.explain(place, active.hash(request)?, Toll::ONE, &self.situation(band, now)))
    }

    /// The decision on one more request of a caller, by the rule that throttled it. This needs no name, which may be
    /// truncated. `None` if the rule is gone.
    pub fn explain_throttled(&self, caller: &Throttled, band: Band, now: Moment) -> Option<Decision> {
        let place = self.place_of(caller)?;
        Some(self.rules[place].explain(place, caller.hash, Toll::ONE, &self.situation(band, now)))
    }

    /// Removes a caller's state from the rule with index `place`. Returns whether there was any. Requests in
    /// flight stay counted, and so does state that is shared with other callers.
    pub fn forget(&self, place: usize, request: &impl Request, now: Moment) -> bool {
        let active = self.rules.get(place);
        active.is_some_and(|active| active.hash(request).is_some_and(|hash| active.forget(hash, now)))
    }

    /// Removes a throttled caller's state, as [`forget`](Self::forget) does, without its name.
    pub fn forget_throttled(&self, caller: &Throttled, now: Moment) -> bool {
        self.place_of(caller).is_some_and(|place| self.rules[place].forget(caller.hash, now))
    }

    /// The index of the rule that throttled a caller, if it still exists.
    fn place_of(&self, caller: &Throttled) -> Option<usize> {
        self.rules.iter().position(|active| active.table.id == caller.table)
    }

    /// Settles a request that has ended and has cost `actual`.
    pub fn settle<const N: usize>(&self, ticket: Ticket<N>, actual: Toll, now: Moment) {
        let (reserved, at) = (ticket.toll, ticket.at);
        // Limits that only count requests are paid on admission.
        let is_open = |charge: &&TableCharge| {
            self.active(charge).is_some_and(|active| matches!(active.rule.limit, Limit::InFlight(_) | Limit::Budget(_)))
        };
        for charge in ticket.charges.iter().filter(is_open) {
            self.with_charged(charge, now, |active, record| {
                let limit = &active.rule.limit;
                // Additional cost is charged even to a key that lost its slot. A surplus is returned only to
                // the key's own slot, because the overflow record is shared with other keys.
                if matches!(limit, Limit::InFlight(_)) || actual.cpu > reserved.cpu || record.has_slot() {
                    limit.settle(record, reserved, actual, charge.charged(at), now);
                }
                if matches!(limit, Limit::Budget(_)) {
                    let act = |clear| EventKind::Settlement { hash: charge.hash, cpu: actual.cpu, clear };
                    active.report_end(charge, record, act);
                }
            });
        }
    }

    /// Refunds a request that was not forwarded. Each rule returns its charge, less the amount paid back
    /// since.
    pub fn refund<const N: usize>(&self, ticket: Ticket<N>, now: Moment) {
        for charge in &ticket.charges {
            let charged = charge.charged(ticket.at);
            self.with_charged(charge, now, |active, record| {
                let limit = &active.rule.limit;
                if record.has_slot() || matches!(limit, Limit::InFlight(_)) {
                    limit.refund(record, ticket.toll, charged, now);
                }
                let count = limit.returnable(ticket.toll, charged, now);
                if count > 0 {
                    active.report_end(charge, record, |clear| EventKind::Return { hash: charge.hash, count, clear });
                }
            });
        }
    }

    /// The callers that some rules throttled most, with their remaining quota; `rules` selects the rules by index. The
    /// counts are approximate while thousands are throttled per second.
    pub fn throttled(&self, rules: impl Fn(usize) -> bool, most: usize, now: Moment) -> Vec<Throttled> {
        let places = self.rules.iter().enumerate().filter(|(place, _)| rules(*place));
        let tables: Vec<u32> = places.map(|(_, active)| active.table.id).collect();
        let mut throttled = self.names.top(|table| tables.contains(&table), most, now);
        throttled.retain_mut(|caller| {
            let Some(place) = self.place_of(caller) else { return false };
            let active = &self.rules[place];
            let record = active.table.record(&active.rule, caller.hash, now);
            caller.rule = place;
            caller.info = active.rule.limit.info(&record, now);
            true
        });
        throttled
    }

    pub(crate) fn situation(&self, band: Band, now: Moment) -> Situation {
        Situation { now, started: self.started, band }
    }

    /// Adds the rules that `among` accepts and that apply, with the request's keys, and prefetches their
    /// rows.
    #[inline]
    pub(crate) fn find_keys(&self, among: impl Fn(usize) -> bool, request: &impl Request, keys: &mut Keys) {
        if let Some(name) = request.rule_name() {
            for place in self.rule_names.places(name).filter(|place| among(*place)) {
                self.find_key(place, request, keys);
            }
            return;
        }
        for (place, active) in self.rules.iter().enumerate() {
            if among(place) && active.rule.applies(request) {
                self.find_key(place, request, keys);
            }
        }
    }

    /// Adds the key of the rule with index `place`, which applies.
    #[inline]
    fn find_key(&self, place: usize, request: &impl Request, keys: &mut Keys) {
        let active = &self.rules[place];
        let Some(hash) = active.hash(request) else { return };
        active.table.prefetch(hash);
        if keys.try_push((place, hash)).is_err() {
            self.rules_skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds the claims of the rules in `keys`.
    #[inline]
    pub(crate) fn claim_all<'t>(&'t self, keys: &Keys, now: Moment, claims: &mut Claims<'t>) {
        for &(place, hash) in keys {
            claims.push(self.rules[place].claim(place, hash, now));
        }
    }

    /// Locks the rows of all claims, in the order of their tables.
    #[inline]
    pub(crate) fn lock_all<'t>(&'t self, claims: &[Claim<'t, KeyRecord<'t>>], locks: &mut Locks<'t>) {
        let table = |claim: &Claim<'t, KeyRecord<'t>>| self.rules[claim.place].table.id;
        // Tables are created in the order of their rules, unless a reload has inherited some.
        if claims.is_sorted_by_key(table) {
            claims.iter().for_each(|claim| locks.push(claim.record.lock()));
        } else {
            let mut order: ArrayVec<_, RULES_AT_ONCE_MAX> = claims.iter().collect();
            order.sort_unstable_by_key(|claim| table(claim));
            order.iter().for_each(|claim| locks.push(claim.record.lock()));
        }
    }

    /// The rule that `charge` was charged to; `None` if a reload has removed it.
    pub(crate) fn active(&self, charge: &TableCharge) -> Option<&ActiveRule> {
        let id = |active: &ActiveRule| active.table.id;
        // Tables are created in the order of their rules, unless a reload has inherited some.
        match self.rules.binary_search_by_key(&charge.table, id) {
            Ok(place) => self.rules.get(place),
            Err(_) => self.rules.iter().find(|active| id(active) == charge.table),
        }
    }

    /// Calls `change` with the record that `charge` was charged to, if the rule still exists and, for requests in
    /// flight, the record too.
    fn with_charged(&self, charge: &TableCharge, now: Moment, change: impl FnOnce(&ActiveRule, &mut KeyRecord<'_>)) {
        let Some(active) = self.active(charge) else { return };
        active.with_record(charge.hash, now, |record| {
            if charge.in_overflow {
                record.location = Location::Overflow;
            } else if matches!(active.rule.limit, Limit::InFlight(_)) && !record.has_slot() {
                return;
            }
            change(active, record);
        });
    }

    /// Records the name of a caller that was throttled, or would have been by a rule in observe mode.
    pub(crate) fn note(&self, request: &impl Request, decision: &Decision, keys: &[(usize, KeyHash)], now: Moment) {
        let Some(act) = decision.act() else { return };
        let Some(place) = decision.rule else { return };
        let Some(&(_, hash)) = keys.iter().find(|key| key.0 == place) else { return };
        let Some(times) = times_to_note(now) else { return };
        let active = &self.rules[place];
        self.names.note(active.table.id, hash, act, times, now, |name| {
            active.rule.class.write_key(request, name);
        });
    }
}

/// The number of throttled requests that the current one counts for; `None` if it is not sampled.
fn times_to_note(now: Moment) -> Option<u64> {
    thread_local!(static SAMPLE: Sample = const { Sample::new() });
    SAMPLE.with(|sample| sample.times(now))
}

impl ActiveRule {
    pub(crate) fn new(rule: Rule, table: Arc<Table>) -> Self {
        Self { fast_rate: FastRate::of(&rule), rule, table, relay: None }
    }

    /// Calls `change` with the record of the key with `hash`, while its row is locked.
    pub(crate) fn with_record<T>(&self, hash: KeyHash, now: Moment, change: impl FnOnce(&mut KeyRecord<'_>) -> T) -> T {
        let mut record = self.table.record(&self.rule, hash, now);
        let _held = record.lock();
        record.refresh();
        change(&mut record)
    }

    /// The hash of a request's key, if it has one.
    #[inline]
    fn hash(&self, request: &impl Request) -> Option<KeyHash> {
        let mut pieces = self.table.hasher.pieces();
        if !self.rule.class.write_key(request, &mut pieces) {
            return None;
        }
        Some(self.hash_of_truncated(request, pieces.bytes).unwrap_or_else(|| pieces.finish()))
    }

    /// The decision on a key, for the rule with index `place`.
    fn explain(&self, place: usize, hash: KeyHash, toll: Toll, situation: &Situation) -> Decision {
        self.with_record(hash, situation.now, |record| {
            let check = self.rule.check(record, toll, situation);
            self.rule.decision(place, &check, record, situation)
        })
    }

    /// Removes a key's state. Returns whether there was any.
    fn forget(&self, hash: KeyHash, now: Moment) -> bool {
        self.with_record(hash, now, |record| {
            let is_removed = record.has_slot() && !matches!(self.rule.limit, Limit::InFlight(_));
            if is_removed {
                record.clear(self.rule.words());
            }
            is_removed
        })
    }

    /// The claim on the record of a key, for the rule with index `place`.
    #[inline]
    pub(crate) fn claim(&self, place: usize, hash: KeyHash, now: Moment) -> Claim<'_, KeyRecord<'_>> {
        Claim::new(place, &self.rule, self.table.record(&self.rule, hash, now))
    }

    /// Decides on a key that has a hot slot, or can take one because no cold record has debt ([`HotSlots`]). `None` if
    /// neither holds, or if another thread changed the row: then [`decide_general`](Self::decide_general) must decide.
    #[inline(always)]
    fn decide_fast(
        &self,
        fast_rate: FastRate,
        hot_slots: HotSlots<'_>,
        hash: KeyHash,
        toll: Toll,
        now: Moment,
    ) -> Option<(Verdict, Ticket<1>)> {
        let version = hot_slots.lock().version();
        let known = hot_slots.find(hash.fingerprint());
        let (slot, debt_until) = match known {
            Some(slot) => (slot, Moment::from_nanos(hot_slots.state(slot).load(Ordering::Relaxed))),
            None => {
                let (slot, clear_at) = hot_slots.best();
                let is_fresh = clear_at <= now && hot_slots.evicted_until() <= now && !hot_slots.has_cold_debt(now);
                is_fresh.then_some((slot, Moment::ZERO))?
            }
        };
        let (verdict, new_debt_until) = fast_rate.decide(debt_until, now);
        if verdict.is_refusal() {
            let nothing = || Ticket { toll, at: now, charges: ArrayVec::new() };
            return hot_slots.lock().is_still(version).then(|| (verdict, nothing()));
        }
        let held = hot_slots.lock().take_still(version)?;
        if known.is_none() {
            hot_slots.assign(slot, hash.fingerprint(), new_debt_until);
        } else {
            hot_slots.state(slot).store(new_debt_until.as_nanos(), Ordering::Relaxed);
        }
        drop(held);
        let mark = new_debt_until.as_nanos();
        let charge = TableCharge { table: self.table.id, hash, mark, in_overflow: false, is_reported: false };
        Some((verdict, Ticket { toll, at: now, charges: ArrayVec::from([charge]) }))
    }

    /// Decides on any key by any rule.
    #[inline(never)]
    fn decide_general(&self, hash: KeyHash, toll: Toll, situation: &Situation) -> (Verdict, Ticket<1>) {
        let mut claims = [self.claim(0, hash, situation.now)];
        let decision = decide_claims(&mut claims, toll, situation, |claims| claims[0].record.lock());
        let charges = claims.iter().filter_map(|claim| self.charge_of(claim, hash)).collect();
        (decision.verdict, Ticket { toll, at: situation.now, charges })
    }

    /// Records that another process blocks the key with `hash`.
    #[cfg(feature = "redis")]
    pub(crate) fn block(&self, hash: KeyHash, level: u8, until: Moment, now: Moment) {
        self.with_record(hash, now, |record| self.rule.block(record, level, until));
    }

    /// The charge that `claim` made, for the ticket; `None` if it charged nothing.
    pub(crate) fn charge_of(&self, claim: &Claim<'_, KeyRecord<'_>>, hash: KeyHash) -> Option<TableCharge> {
        let in_overflow = claim.record.location == Location::Overflow;
        let mark = claim.mark?;
        if in_overflow {
            self.table.pressure.shared.fetch_add(1, Ordering::Relaxed);
        }
        Some(TableCharge { table: self.table.id, hash, mark, in_overflow, is_reported: false })
    }
}

/// Checks all claims and charges all or none. Takes no lock if nothing changes; otherwise `lock` locks the rows.
#[inline]
pub(crate) fn decide_claims<'t, L>(
    claims: &mut [Claim<'t, KeyRecord<'t>>],
    toll: Toll,
    situation: &Situation,
    lock: impl FnOnce(&[Claim<'t, KeyRecord<'t>>]) -> L,
) -> Decision {
    let mut summary = check_all(claims, toll, situation);
    if !summary.changes {
        let decision = apply(claims, summary, toll, situation);
        if claims.iter().all(|claim| claim.record.is_current()) {
            return decision;
        }
    }
    let held = lock(claims);
    let changed = claims.iter_mut().fold(false, |changed, claim| claim.record.refresh() | changed);
    if changed {
        summary = check_all(claims, toll, situation);
    }
    let decision = apply(claims, summary, toll, situation);
    drop(held);
    decision
}

//! Decisions for doors (interfaces for programs that are not behind the gate), with the same rules, state, exemptions,
//! flags and queue as for forwarded requests.
//!
//! A door asks ([`Decider::decide`]) about a request that another process serves, so this process sees neither its end
//! nor its cost. If the request is not refused, its charge and its permit are in a [`DoorTicket`]. The door keeps it
//! until the other process reports the end ([`Decider::settle`]), or a deadline passes ([`Decider::expire`]).

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::{Act, Decision, Verdict};
use tollgate_core::inputs::Inputs;
use tollgate_core::limit::{Factor, Limit};
use tollgate_core::path::NormalPath;
use tollgate_core::request::Request;
use tollgate_core::rule::Mode;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limit_status;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_wire::rate_limit_headers::LimitStatus;

use crate::gate::decide::admission::{Admission, Outcome};
use crate::gate::decide::holds::HoldSlot;
use crate::gate::decide::identify::{hash_of, trusts};
use crate::gate::decide::queue::Permit;
use crate::gate::decide::refusal::Refusal;
use crate::gate::decide::remote_state::Charge;
use crate::gate::decide::rule_engagement::by_rule;
use crate::gate::decide::rules::Rules;
use crate::gate::http::own_answer::refusal_body;
use crate::gate::http::worker::Shared;
use crate::gate::observe::counters::{WorkerCounter, WorkerCounters};
use crate::gate::observe::engagement_log::EngagementLog;
use crate::gate::observe::request_stats::PendingStats;
use crate::settings::DEFAULT_DOMAIN;

/// Decides about requests of doors. Each thread of the doors has one.
pub(crate) struct Decider {
    shared: Arc<Shared>,
    counters: Arc<WorkerCounters>,
    log: EngagementLog,
}

/// The parameters of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inquiry<'a> {
    /// The domain whose rules decide.
    pub(crate) domain: &'a str,
    /// The number of requests that the call counts as; 0 charges nothing.
    pub(crate) count: u64,
    /// The CPU time that budgets charge in advance; none for the expected cost of the request's route.
    pub(crate) cpu: Option<Span>,
    /// Scales the limits: 2 halves them, 0.5 doubles them.
    pub(crate) factor: Option<Factor>,
    /// Whether the caller has named a key instead of describing the request: it is then the key for every class.
    pub(crate) has_key: bool,
    pub(crate) on_hold: OnHold,
}

/// The behaviour of a door for a request that a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnHold {
    /// The request is refused.
    Refuse,
    /// The caller gets the length of the hold and waits itself, so the gate needs no room for it.
    Report,
    /// The decision is delayed until the hold ends. The request is refused if there is no room to hold it.
    Wait,
}

/// The reason why nothing can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRuling {
    UnknownDomain,
    UnknownRule,
    /// The request has no key of the class of the named rule.
    NoKey,
    /// A rule that applies has its state on Redis, where limits cannot be scaled.
    FactorOnRedis,
    /// The scaled limit is out of range.
    FactorOutOfRange,
}

/// A decision about a request.
pub(crate) struct Ruling {
    pub(crate) decision: Decision,
    /// The time of the decision.
    pub(crate) at: Moment,
    /// The limit of the rule that decided, scaled by `factor`.
    limit: Option<Limit>,
    open: OpenCharge,
    /// The amount that the rules have charged. Its CPU time is multiplied by `factor`: see [`charged_cpu`].
    toll: Toll,
    factor: Option<Factor>,
    /// The expected cost, without the factor.
    expected: Span,
}

/// The charge of a request. If it is dropped before the request is settled, it is refunded: the caller left while the
/// request was held.
struct OpenCharge {
    admission: Arc<Admission>,
    rules: Arc<Rules>,
    /// The limiter that has charged the request, if its limits are scaled.
    scaled: Option<Arc<Limiter>>,
    charge: Option<Charge>,
}

impl OpenCharge {
    fn refund(&mut self) {
        if let Some(charge) = self.charge.take() {
            // Another limiter would refund more or less than was charged.
            let limiter = self.scaled.as_deref().unwrap_or(&self.rules.limiter);
            charge.refund(limiter, self.admission.now());
        }
    }
}

impl Drop for OpenCharge {
    fn drop(&mut self) {
        self.refund();
    }
}

impl Ruling {
    /// The name of the rule that decided.
    pub(crate) fn rule(&self) -> Option<&str> {
        Some(&self.open.rules.face(&self.decision)?.name)
    }

    /// The state of the limit that decided, if the rule shows it.
    pub(crate) fn standing(&self) -> Option<LimitStatus<'_>> {
        self.open.rules.face(&self.decision).filter(|face| face.shows_limit)?;
        self.figures()
    }

    /// The state of the limit that decided, for protocols that always report it.
    pub(crate) fn figures(&self) -> Option<LimitStatus<'_>> {
        let face = self.open.rules.face(&self.decision)?;
        Some(limit_status::of(&face.name, self.limit.as_ref()?, self.decision.info?))
    }

    /// Whether the rule that decided is in observe mode.
    pub(crate) fn is_observed(&self) -> bool {
        let rule = self.decision.rule.and_then(|place| self.open.rules.limiter.rule(place));
        rule.is_some_and(|rule| rule.mode == Mode::Observe)
    }

    /// Whether the request must be settled at its end, because there are in-flight limits or budgets.
    pub(crate) fn is_open(&self) -> bool {
        self.open.charge.is_some() && self.open.rules.has_open_limits
    }

    /// The refusal for the client.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::by_rule(&self.open.rules, self.decision, self.at)
    }

    /// The ticket to settle when the request ends.
    ///
    /// It is in a box, because it is large and is moved several times until the request ends.
    pub(crate) fn ticket(self) -> Box<DoorTicket> {
        let is_held = self.decision.act() == Some(Act::Hold);
        Box::new(DoorTicket { ruling: self, permit: None, account: None, is_held })
    }
}

/// The charge and the permit of a request until it ends.
pub(crate) struct DoorTicket {
    ruling: Ruling,
    /// The permit of the queue, if the caller asked for one.
    pub(crate) permit: Option<Permit>,
    /// The statistics that get the cost at the end.
    account: Option<PendingStats>,
    /// Whether a rule or the queue has held the request.
    is_held: bool,
}

impl Decider {
    /// The decider of the door thread with this index.
    pub(crate) fn new(shared: Arc<Shared>, door_thread: usize) -> Self {
        let workers = shared.settings.load().workers.max(1);
        let counters = shared.counters.get(workers + door_thread).cloned().unwrap_or_default();
        let log = EngagementLog::new(shared.stats.feed.clone(), shared.stats.refusals.clone());
        Self { shared, counters, log }
    }

    fn admission(&self) -> &Arc<Admission> {
        &self.shared.admission
    }

    /// The current time of the clock of decisions.
    pub(crate) fn now(&self) -> Moment {
        self.admission().now()
    }

    /// Whether this address is a trusted proxy.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        trusts(&self.shared.settings.load(), address)
    }

    /// Records the load that an application reports: how long its work waits. Returns the band.
    pub(crate) fn report_load(&self, lag: Span) -> Band {
        let load = &self.admission().load;
        load.report(lag, self.now());
        load.band()
    }

    /// The content type and the body of a refusal: a page for a browser (`wants_html`), or a problem document for a
    /// program. The page of a request that is safe to send again (`is_repeatable`) may reload itself.
    pub(crate) fn refusal_body(
        &self,
        refusal: &Refusal,
        wants_html: bool,
        is_repeatable: bool,
        retry_secs: Option<u64>,
    ) -> (&'static str, Vec<u8>) {
        refusal_body(refusal, wants_html, is_repeatable, retry_secs, &self.shared.settings.load().pages)
    }

    /// Writes log lines that are due. Call it periodically.
    pub(crate) fn tick(&self) {
        self.log.flush(self.now());
    }

    /// Counts a refusal by a limit whose parameters came with the call, and passes it to the watch.
    pub(crate) fn refused_by_call(&self, class: &str, key: &[u8]) {
        self.counters.count(WorkerCounter::Refused);
        self.shared.stats.feed.refused(class, key);
    }

    /// Counts a request that is decided by a limit whose parameters came with the call.
    pub(crate) fn count_call(&self) {
        self.counters.count(WorkerCounter::Request);
    }

    /// The rules of a domain.
    fn rules(&self, domain: &str) -> Result<Arc<Rules>, NoRuling> {
        match domain {
            DEFAULT_DOMAIN => Ok(self.admission().rules()),
            other => {
                let domains = self.shared.domains.load();
                let found = domains.iter().find(|(name, _)| name == other).ok_or(NoRuling::UnknownDomain);
                found.map(|(_, rules)| rules.clone())
            }
        }
    }

    /// Whether there is a domain with this name.
    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        self.rules(domain).is_ok()
    }

    /// Whether `holds` is true of the headers and cookies that the rules of a domain use, or of those that users and
    /// priorities use.
    pub(crate) fn has_inputs(&self, domain: &str, holds: impl Fn(&Inputs) -> bool) -> Result<bool, NoRuling> {
        Ok(holds(&self.rules(domain)?.inputs) || holds(&self.admission().claims().inputs))
    }

    /// Refunds `count` requests to the key of each rule that applies. Does nothing and returns false if such a rule has
    /// its state on Redis, where that is impossible.
    pub(crate) fn return_hits(&self, domain: &str, request: &impl Request, count: u64) -> Result<bool, NoRuling> {
        let rules = self.rules(domain)?;
        let is_local = rules.is_local(request);
        if is_local {
            rules.limiter.give_back(request, count, self.now());
        }
        Ok(is_local)
    }

    /// Charges as many of `count` requests as fit to the key of each rule that applies. Does nothing and returns false
    /// if such a rule has its state on Redis, where that is impossible.
    pub(crate) fn charge_rest(&self, domain: &str, request: &impl Request, count: u64) -> Result<bool, NoRuling> {
        let rules = self.rules(domain)?;
        let is_local = rules.is_local(request);
        if is_local {
            rules.limiter.charge_rest(request, count, self.now());
        }
        Ok(is_local)
    }

    /// Decides by the rules, and charges the request unless it is refused. With [`OnHold::Wait`], returns at the end of
    /// the hold.
    pub(crate) async fn decide(&self, inquiry: Inquiry<'_>, request: &impl Request) -> Result<Ruling, NoRuling> {
        let (admission, rules) = (self.admission(), self.rules(inquiry.domain)?);
        if let Some(name) = request.rule_name() {
            let class = rules.limiter.rules_named(name).next().map(|rule| &rule.class);
            let class = class.ok_or(NoRuling::UnknownRule)?;
            // A class that joins several properties needs several values, and the caller has named one.
            let is_ambiguous = inquiry.has_key && class.is_joined();
            if is_ambiguous || !class.write_key(request, &mut NoSink) {
                return Err(NoRuling::NoKey);
            }
        }
        let request = &Marked { request, is_flagged: rules.is_flagged(request, &admission.flagged) };
        self.counters.count(WorkerCounter::Request);
        let expected = self.expected(&rules, inquiry, request);
        let toll = Toll { count: inquiry.count, cpu: charged_cpu(inquiry.factor, expected) };
        let (band, now) = (admission.load.band(), admission.now());
        let is_local = rules.is_local(request);
        let scaled = match inquiry.factor {
            Some(_) if !is_local => return Err(NoRuling::FactorOnRedis),
            Some(factor) => Some(rules.scaled(factor).map_err(|_| NoRuling::FactorOutOfRange)?),
            None => None,
        };
        let decided = match &scaled {
            Some(limiter) => {
                let (decision, ticket) = limiter.decide(request, toll, band, now);
                (decision, ticket.into())
            }
            None if is_local => rules.decide(request, toll, band, now),
            // In a box, so that decisions from local state do not carry the memory for it.
            None => Box::pin(rules.ask(request, toll, band, &admission.clock)).await,
        };
        let (limiter, now) = (scaled.as_deref().unwrap_or(&rules.limiter), admission.now());
        let (mut decision, charge) = admission.exemptions.spare(limiter, request, toll, decided, now);
        let mut limit = decision.rule.and_then(|place| Some(limiter.rule(place)?.limit));
        if let (Some(factor), Some(budget @ Limit::Budget(_))) = (inquiry.factor, &mut limit) {
            *budget = budget.scaled(factor).unwrap_or(*budget);
            if let Some(info) = &mut decision.info {
                info.remaining = factor.quantity(info.remaining);
            }
        }
        let open = OpenCharge { admission: admission.clone(), rules, scaled, charge: Some(charge) };
        let ruling = Ruling { decision, at: now, limit, open, toll, factor: inquiry.factor, expected };
        let (ruling, held) = self.carry_out(ruling, inquiry, request);
        if let Some(held) = held {
            // In a box, so that decisions without a hold do not carry the memory for the timer.
            Box::pin(tokio::time::sleep(held.wait.into())).await;
        }
        Ok(ruling)
    }

    /// The expected cost of a request: that of the inquiry, or else that of its route if there are budgets.
    fn expected(&self, rules: &Rules, inquiry: Inquiry<'_>, request: &impl Request) -> Span {
        let admission = self.admission();
        let of_route = || match rules.has_budget() && inquiry.count > 0 {
            true => admission.queues.expected(admission.route_hasher.key(request), request.host()).0,
            false => Span::ZERO,
        };
        inquiry.cpu.unwrap_or_else(of_route)
    }

    /// Applies, counts and logs a decision. Returns the slot of a request that this process holds.
    fn carry_out(
        &self,
        mut ruling: Ruling,
        inquiry: Inquiry<'_>,
        request: &impl Request,
    ) -> (Ruling, Option<HoldSlot<'_>>) {
        let (admission, now) = (self.admission(), ruling.at);
        let decision = &mut ruling.decision;
        let open = &mut ruling.open;
        let mut held = None;
        if let Verdict::Hold(until) = decision.verdict {
            if inquiry.on_hold == OnHold::Wait {
                held = admission.hold(&open.rules, request, decision, until.since(now));
            }
            if inquiry.on_hold != OnHold::Report && held.is_none() {
                decision.verdict = Verdict::Refuse(until);
            }
        }
        if inquiry.count > 0 {
            open.rules.count(decision);
            if let Some(engagement) = by_rule(&open.rules, request, decision, now) {
                self.log.record(&engagement, now);
            }
            if let Some(charge) = &mut open.charge {
                open.rules.report(request, decision, charge, now);
            }
        }
        if decision.verdict.is_refusal() {
            // There is a charge only if the rules held the request and it is refused instead.
            open.refund();
            self.counters.count(WorkerCounter::Refused);
            if let Some(client) = request.client() {
                self.shared.stats.spenders.refused(client, || user_agent_of(request), now);
            }
        }
        (ruling, held)
    }

    /// Waits for a permit of the backend, which the ticket then owns. If the queue refuses, the charge of the rules is
    /// refunded.
    pub(crate) async fn take_permit(
        &self,
        ticket: &mut DoorTicket,
        client: IpAddr,
        request: &impl Request,
    ) -> Result<(), Refusal> {
        let admission = self.admission();
        let claim = {
            let claims = admission.claims();
            let is_flagged = claims.looks_at_flags && ticket.ruling.open.rules.is_flagged(request, &admission.flagged);
            claims.of(&Marked { request, is_flagged }, hash_of(user_agent_of(request)))
        };
        let queued = admission.queues.request(client, claim, admission.route_hasher.key(request), 0);
        let queue = {
            let backends = self.shared.backends.load();
            let picked = backends.of(request.host()).pick(queued);
            picked.map_or_else(|| admission.queues.first(), |backend| backend.queue.clone())
        };
        let is_exempt = claim.is_exempt || admission.skips_queue(&ticket.ruling.open.rules, &ticket.ruling.decision);
        match admission.enter_queue(&queue, queued, (client, is_exempt), &self.log).await {
            Ok((permit, queued)) => {
                ticket.is_held |= queued.is_some_and(|(act, _)| act == Act::Hold);
                ticket.permit = Some(permit);
                Ok(())
            }
            Err(refusal) => {
                ticket.ruling.open.refund();
                self.counters.count(WorkerCounter::Refused);
                self.shared.stats.spenders.refused(client, || user_agent_of(request), self.now());
                Err(refusal)
            }
        }
    }

    /// Adds the request, which arrived at `since`, to the statistics of its client. Its cost is added at its end.
    pub(crate) fn account(&self, ticket: &mut DoorTicket, request: &impl Request, since: Moment) {
        if let Some(client) = request.client() {
            ticket.account = Some(self.shared.stats.admitted(client, user_agent_of(request), since));
        }
    }

    /// An estimate of the CPU time of a request that took `duration` while `in_flight` requests shared the cores.
    pub(crate) fn share_of(&self, duration: Span, in_flight: usize) -> Span {
        let cores_milli = u128::from(self.shared.settings.load().cores.as_milli());
        let in_flight_milli = (in_flight.max(1) as u128 * 1000).max(cores_milli);
        Span::from_nanos((u128::from(duration.as_nanos()) * cores_milli / in_flight_milli) as u64)
    }

    /// Settles a request that has ended: at the reported cost, or else at the cost measured for its permit, or else at
    /// the expected cost.
    pub(crate) fn settle(&self, mut ticket: Box<DoorTicket>, cpu: Option<Span>) {
        let measured = ticket.permit.take().map(|permit| permit.leave(cpu, Outcome::Answered));
        let cost = cpu.or(measured).unwrap_or(ticket.ruling.expected);
        self.end(ticket, cost);
    }

    /// Settles a request that was not settled in time, at its expected cost. Prices are not learned from it.
    pub(crate) fn expire(&self, mut ticket: Box<DoorTicket>) {
        let expected = ticket.ruling.expected;
        let charged = ticket.permit.take().map(|permit| permit.leave(Some(expected), Outcome::Failed));
        self.end(ticket, charged.unwrap_or(expected));
    }

    /// Refunds a request that did not take place.
    pub(crate) fn give_back(&self, mut ticket: Box<DoorTicket>) {
        if let Some(permit) = ticket.permit.take() {
            permit.leave(Some(Span::ZERO), Outcome::Failed);
        }
        ticket.ruling.open.refund();
    }

    /// Settles the charge and the statistics.
    fn end(&self, mut ticket: Box<DoorTicket>, cost: Span) {
        let Ruling { decision, open, toll, factor, .. } = &mut ticket.ruling;
        open.rules.cost(decision, cost);
        if let Some(charge) = open.charge.take() {
            let cpu = charged_cpu(*factor, cost);
            charge.settle(&open.rules.limiter, Toll { cpu, ..*toll }, self.now());
        }
        if let Some(account) = ticket.account.take() {
            account.settle(cost, [ticket.is_held.then_some(Act::Hold), None], self.now());
        }
    }
}

/// The CPU time that budgets charge for a request that costs `cpu`: multiplied by the factor, because the limiter does
/// not scale budgets.
fn charged_cpu(factor: Option<Factor>, cpu: Span) -> Span {
    factor.map_or(cpu, |factor| factor.cost(cpu))
}

fn user_agent_of(request: &impl Request) -> &[u8] {
    request.header("user-agent").unwrap_or_default()
}

/// Discards a key: only whether the request has one is of interest.
struct NoSink;

impl KeySink for NoSink {
    fn write(&mut self, _: &[u8]) {}
}

/// A request with the result of the flag lookup.
struct Marked<'a, R> {
    request: &'a R,
    is_flagged: bool,
}

impl<R: Request> Request for Marked<'_, R> {
    delegate! { request:
        client() -> Option<IpAddr>;
        method() -> &[u8];
        target() -> &[u8];
        host() -> Option<&[u8]>;
        header(name: &str) -> Option<&[u8]>;
        normal_path() -> Option<&NormalPath>;
        attribute(name: &str) -> Option<&[u8]>;
        attribute_count() -> usize;
        cookie(name: &str) -> Option<&[u8]>;
        write_query(name: &str, sink: &mut impl KeySink) -> bool;
        json(pointer: &str) -> Option<&[u8]>;
        rule_name() -> Option<&str>;
    }

    fn is_flagged(&self) -> bool {
        self.is_flagged
    }
}

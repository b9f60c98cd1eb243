//! What doors ask of the gate: the same rules, state, exemptions, flags and queue decide as for requests that the gate forwards.
//!
//! A door describes a request that another process serves, so this process sees neither its end nor its cost. What a request was charged, and its permit if
//! it took one, are in a [`DoorTicket`]; the door keeps it until the other process reports the cost or a deadline passes.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::limit::{Factor, Limit};
use tollgate_core::network::Network;
use tollgate_core::path::NormalPath;
use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limit_status;
use tollgate_wire::rate_limit_headers::LimitStatus;

use crate::gate::decide::admission::{Admission, Entering, Outcome};
use crate::gate::decide::identify::{hash_of, trusts};
use crate::gate::decide::key_text::KeyText;
use crate::gate::decide::queue::Permit;
use crate::gate::decide::refusal::Refusal;
use crate::gate::decide::remote_state::Charge;
use crate::gate::decide::rule_engagement::by_rule;
use crate::gate::decide::rules::Rules;
use crate::gate::http::own_answer::refusal_body;
use crate::gate::http::worker::Shared;
use crate::gate::observe::counters::WorkerCounters;
use crate::gate::observe::engagement_log::EngagementLog;
use crate::gate::observe::request_stats::PendingStats;
use crate::settings::DEFAULT_DOMAIN;

/// Decides about requests that come through doors. One for each thread.
pub(crate) struct Decider {
    shared: Arc<Shared>,
    counters: Arc<WorkerCounters>,
    log: EngagementLog,
}

/// How a request is to be decided about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inquiry<'a> {
    /// The domain whose rules decide.
    pub(crate) domain: &'a str,
    /// How many requests it counts as; 0 looks and charges nothing.
    pub(crate) count: u64,
    /// The CPU time that it is expected to take; none: as requests of its route do.
    pub(crate) cpu: Option<Span>,
    /// Makes the limits looser or tighter.
    pub(crate) factor: Option<Factor>,
    /// Whether one key stands for whatever the class of the rule looks at.
    pub(crate) has_key: bool,
    /// Whether its caller waits if a rule holds it. Otherwise it is refused.
    pub(crate) may_hold: bool,
}

/// Why nothing can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRuling {
    /// There is no such domain.
    UnknownDomain,
    /// The domain has no such rule.
    UnknownRule,
    /// The request has no key of the class of the rule that it names.
    NoKey,
    /// A rule that applies is kept on Redis, where limits have no factor.
    FactorOnRedis,
    /// The limit cannot be made that loose or tight.
    FactorOutOfRange,
}

/// What was decided about a request.
pub(crate) struct Ruling {
    /// The decision.
    pub(crate) decision: Decision,
    /// When it was made.
    pub(crate) at: Moment,
    /// The limit of the rule that decided, under the factor.
    limit: Option<Limit>,
    open: OpenCharge,
    toll: Toll,
}

/// What a request was charged. Dropped before the request has ended or expired, it is given back: the caller left while the request was held.
struct OpenCharge {
    admission: Arc<Admission>,
    rules: Arc<Rules>,
    charge: Option<Charge>,
}

impl OpenCharge {
    fn refund(&mut self) {
        if let Some(charge) = self.charge.take() {
            self.rules.refund(charge, self.admission.now());
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

    /// How much the limit of the rule that decided allows.
    pub(crate) fn quota(&self) -> Option<u64> {
        Some(limit_status::of("", self.limit.as_ref()?, self.decision.info?).quota)
    }

    /// Where the caller stands with the rule that decided, if callers are told.
    pub(crate) fn standing(&self) -> Option<LimitStatus<'_>> {
        let face = self.open.rules.face(&self.decision).filter(|face| face.tells())?;
        Some(limit_status::of(&face.name, self.limit.as_ref()?, self.decision.info?))
    }

    /// Whether something is open until the request ends: a place among requests in flight, or a budget whose cost is not known.
    pub(crate) fn is_open(&self) -> bool {
        self.open.charge.is_some() && self.open.rules.has_open_limits()
    }

    /// The client of a refused request is told this.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::by_rule(&self.open.rules, self.decision, self.at)
    }

    /// What is to be settled when the request ends.
    pub(crate) fn ticket(self) -> DoorTicket {
        let Self { decision, open, toll, .. } = self;
        DoorTicket { open, decision, toll, permit: None, account: None }
    }
}

/// What a request was charged and holds, until it ends.
pub(crate) struct DoorTicket {
    open: OpenCharge,
    decision: Decision,
    toll: Toll,
    permit: Option<Permit>,
    account: Option<PendingStats>,
}

impl Decider {
    pub(crate) fn new(shared: Arc<Shared>, door_thread: usize) -> Self {
        let workers = shared.settings.load().workers.max(1);
        let counters = shared.counters.get(workers + door_thread).cloned().unwrap_or_default();
        let log = EngagementLog::new(shared.stats.feed().clone());
        Self { shared, counters, log }
    }

    fn admission(&self) -> &Arc<Admission> {
        &self.shared.admission
    }

    /// The time that decisions are made by.
    pub(crate) fn now(&self) -> Moment {
        self.admission().now()
    }

    /// Whether this address is a proxy whose word about clients is taken.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        trusts(&self.shared.settings.load(), address)
    }

    /// An application says how loaded it is, in terms of the time for which its work waits. Returns the band.
    pub(crate) fn report_load(&self, lag: Span) -> Band {
        let load = self.admission().load();
        load.report(lag, self.now());
        load.band()
    }

    /// The body of a refusal and its content type: a page for a browser, a problem for a program.
    pub(crate) fn refusal_body(
        &self,
        refusal: &Refusal,
        wants_html: bool,
        is_repeatable: bool,
        retry_secs: Option<u64>,
    ) -> (&'static str, Vec<u8>) {
        refusal_body(refusal, wants_html, is_repeatable, retry_secs, &self.shared.settings.load().pages)
    }

    /// Writes what has been collected for the log. To be called now and then.
    pub(crate) fn tick(&self) {
        self.log.flush(self.now());
    }

    /// Counts a refusal by a limit that came with its call, for the watch.
    pub(crate) fn refused_by_call(&self, class: &str, key: &[u8]) {
        self.counters.refused();
        self.shared.stats.feed().refused(class, key);
    }

    /// Counts a request that is decided by a limit that came with it.
    pub(crate) fn count_call(&self) {
        self.counters.request();
    }

    fn rules(&self, domain: &str) -> Result<Arc<Rules>, NoRuling> {
        match domain {
            DEFAULT_DOMAIN => Ok(self.admission().rules()),
            other => self.shared.domains.find(other).ok_or(NoRuling::UnknownDomain),
        }
    }

    /// Decides by the rules, and charges the request if it goes on, held or not.
    pub(crate) async fn decide(&self, inquiry: Inquiry<'_>, request: &impl Request) -> Result<Ruling, NoRuling> {
        let (admission, rules) = (self.admission(), self.rules(inquiry.domain)?);
        if let Some(name) = request.rule_name() {
            let class = rules.limiter().rules().find(|rule| rule.name == name).map(|rule| &rule.class);
            let class = class.ok_or(NoRuling::UnknownRule)?;
            // One key says nothing about the parts of several.
            let is_ambiguous = inquiry.has_key && class.is_joined();
            if is_ambiguous || !class.write_key(request, &mut NoSink) {
                return Err(NoRuling::NoKey);
            }
        }
        let request = &Marked { request, is_flagged: rules.is_flagged(request, admission.flagged()) };
        self.counters.request();
        let toll = Toll { count: inquiry.count, cpu: self.expected(&rules, inquiry, request) };
        let (band, now) = (admission.load().band(), admission.now());
        let is_known = rules.know(request);
        let scaled = match inquiry.factor {
            Some(_) if !is_known => return Err(NoRuling::FactorOnRedis),
            Some(factor) => Some(rules.scaled(factor).map_err(|_| NoRuling::FactorOutOfRange)?),
            None => None,
        };
        let (decision, charge) = match &scaled {
            Some(limiter) => {
                let (decision, ticket) = limiter.decide(request, toll, band, now);
                (decision, ticket.into())
            }
            None if is_known => rules.decide(request, toll, band, now),
            // In a box, so that requests which are decided from memory do not carry the room for it.
            None => Box::pin(rules.ask(request, toll, band, admission.clock())).await,
        };
        let limiter = scaled.as_deref().unwrap_or(rules.limiter());
        let limit = decision.rule.and_then(|place| Some(limiter.rule(place)?.limit));
        let open = OpenCharge { admission: admission.clone(), rules, charge: Some(charge) };
        let ruling = Ruling { decision, at: admission.now(), limit, open, toll };
        Ok(self.carry_out(ruling, inquiry, request))
    }

    /// What the request is expected to cost.
    fn expected(&self, rules: &Rules, inquiry: Inquiry<'_>, request: &impl Request) -> Span {
        let admission = self.admission();
        let of_route = || match rules.has_budget() && inquiry.count > 0 {
            true => admission.queues().expected(admission.route_hasher().key(request)).0,
            false => Span::ZERO,
        };
        inquiry.cpu.unwrap_or_else(of_route)
    }

    /// Does what the rules say, counts and logs it.
    fn carry_out(&self, mut ruling: Ruling, inquiry: Inquiry<'_>, request: &impl Request) -> Ruling {
        let (admission, now) = (self.admission(), ruling.at);
        let decision = &mut ruling.decision;
        let open = &mut ruling.open;
        *decision = admission.exemptions().spare(&open.rules, request, *decision, now);
        if let Verdict::Hold(until) = decision.verdict
            && !inquiry.may_hold
        {
            decision.verdict = Verdict::Refuse(until);
        }
        if inquiry.count > 0 {
            open.rules.count(decision);
            if let Some(engagement) = by_rule(&open.rules, request, decision, now) {
                self.log.tell(&engagement, now);
            }
            if let Some(charge) = &mut open.charge {
                open.rules.report(request, decision, charge, now);
            }
        }
        if decision.verdict.is_refusal() {
            // A request that should have been held has been charged.
            open.refund();
            self.counters.refused();
            if let Some(client) = request.client() {
                self.shared.stats.refused(client, || user_agent_of(request), now);
            }
        }
        ruling
    }

    /// Waits until a rule that holds the request lets it go. The request is refused if there is no room to wait.
    pub(crate) async fn wait(&self, ruling: &mut Ruling, request: &impl Request) {
        let Verdict::Hold(until) = ruling.decision.verdict else { return };
        let place = ruling.decision.rule.and_then(|index| {
            let mut key = KeyText::default();
            let rules = &ruling.open.rules;
            rules.limiter().rule(index)?.class.write_key(request, &mut key);
            let (holds, hold) = (self.admission().holds(), rules.hold());
            holds.take(index, key.as_bytes(), hold, until.since(self.now()))
        });
        match place {
            Some(held) => tokio::time::sleep(held.wait.into()).await,
            None => {
                ruling.decision.verdict = Verdict::Refuse(until);
                ruling.open.refund();
            }
        }
    }

    /// Waits for a permit of the backend, which the ticket then holds. A request that the queue refuses is given back what rules have charged.
    pub(crate) async fn take_permit(
        &self,
        ticket: &mut DoorTicket,
        client: IpAddr,
        request: &impl Request,
    ) -> Result<(), Refusal> {
        let admission = self.admission();
        let claim = {
            let claims = admission.claims();
            let is_flagged = claims.looks_at_flags() && ticket.open.rules.is_flagged(request, admission.flagged());
            claims.of(&Marked { request, is_flagged }, tenant_of(request))
        };
        let entering = Entering { address: client, claim, route: admission.route_hasher().key(request), bytes: 0 };
        let queue = {
            let backends = self.shared.backends.load();
            backends.pick(entering).map_or_else(|| admission.queues().first(), |backend| backend.queue.clone())
        };
        match admission.enter_queue(&queue, entering, &self.log).await {
            Ok((permit, _)) => {
                ticket.permit = Some(permit);
                Ok(())
            }
            Err(refused) => {
                ticket.open.refund();
                self.counters.refused();
                self.shared.stats.refused(client, || user_agent_of(request), self.now());
                Err(Refusal::by_queue(refused))
            }
        }
    }

    /// The console shows what the request of this client costs, once that is known.
    pub(crate) fn account(&self, ticket: &mut DoorTicket, request: &impl Request, since: Moment) {
        if let Some(client) = request.client() {
            ticket.account = Some(self.shared.stats.admitted(client, user_agent_of(request), since));
        }
    }

    /// The request has ended, and has cost `cpu` if that is known.
    pub(crate) fn settle(&self, mut ticket: DoorTicket, cpu: Option<Span>) {
        let measured = ticket.permit.take().map(|permit| permit.leave(cpu, Outcome::Answered));
        let cost = cpu.or(measured).unwrap_or(ticket.toll.cpu);
        self.end(ticket, cost);
    }

    /// Nobody has settled the request in time: it counts as ended, at its expected cost. Prices are not learned from it.
    pub(crate) fn expire(&self, mut ticket: DoorTicket) {
        let expected = ticket.toll.cpu;
        let charged = ticket.permit.take().map(|permit| permit.leave(Some(expected), Outcome::Failed));
        self.end(ticket, charged.unwrap_or(expected));
    }

    /// The request did not take place.
    pub(crate) fn give_back(&self, mut ticket: DoorTicket) {
        if let Some(permit) = ticket.permit.take() {
            permit.leave(Some(Span::ZERO), Outcome::Failed);
        }
        ticket.open.refund();
    }

    fn end(&self, mut ticket: DoorTicket, cost: Span) {
        ticket.open.rules.cost(&ticket.decision, cost);
        if let Some(charge) = ticket.open.charge.take() {
            ticket.open.rules.settle(charge, Toll { cpu: cost, ..ticket.toll }, self.now());
        }
        if let Some(account) = ticket.account.take() {
            account.settle(cost, None);
        }
    }
}

fn user_agent_of(request: &impl Request) -> &[u8] {
    request.header("user-agent").unwrap_or_default()
}

/// One user behind an address: by the user agent, since connections are those of the proxy that asks.
fn tenant_of(request: &impl Request) -> u64 {
    hash_of(user_agent_of(request))
}

/// Takes a key and keeps nothing of it.
struct NoSink;

impl KeySink for NoSink {
    fn network(&mut self, _: Network) {}

    fn write(&mut self, _: &[u8]) {}

    fn end_part(&mut self) {}
}

/// A request whose account was looked up.
struct Marked<'a, R> {
    request: &'a R,
    is_flagged: bool,
}

impl<R: Request> Request for Marked<'_, R> {
    fn client(&self) -> Option<IpAddr> {
        self.request.client()
    }

    fn method(&self) -> &[u8] {
        self.request.method()
    }

    fn target(&self) -> &[u8] {
        self.request.target()
    }

    fn host(&self) -> Option<&[u8]> {
        self.request.host()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.header(name)
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.request.normal_path()
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.request.attribute(name)
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        self.request.cookie(name)
    }

    fn write_query(&self, name: &str, sink: &mut impl KeySink) -> bool {
        self.request.write_query(name, sink)
    }

    fn rule_name(&self) -> Option<&str> {
        self.request.rule_name()
    }

    fn is_flagged(&self) -> bool {
        self.is_flagged
    }
}

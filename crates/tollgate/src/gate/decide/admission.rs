//! Decides about requests: the interface of this folder for the code that forwards them.
//!
//! The gate decides in two steps. First the rules admit, hold or refuse the request ([`Admission::admit`]), then it
//! waits in the fair queue ([`Admission::take_turn`]). In between the gate reads a small body, so that a client that
//! stalls its upload holds no permit.
//!
//! An admitted request has a [`Ticket`] until the backend has finished with it. The ticket is for work at the backend,
//! not for the connection of a client: a client that reads slowly does not prolong it, and a client that disconnects is
//! charged until the backend finishes, because the gate reads the response to its end.

mod ticket;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::queue::{
    Arrival, Fate, Forecast, Refusal as CoreRefusal, Request as QueueRequest, RouteKey, Standing,
};
use tollgate_core::request::Request;
use tollgate_core::rule::Mode;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::ApplyOrder;
use tollgate_wire::http1::Fields;

use super::claims::{Claim, Claims};
use super::exemptions::Exemptions;
use super::flow::Flow;
use super::holds::{HoldSlot, Holds};
use super::identify::RequestView;
use super::key_text::KeyText;
use super::load::Load;
pub(crate) use super::queue::Outcome;
use super::queue::{Permit, Queue, QueueBound, Queues};
use super::refusal::Refusal;
use super::remote_state::{Charge, RemoteLinks};
use super::routes::RouteHasher;
use super::rule_engagement::by_rule;
use super::rules::{Face, Rules};
use super::uploads::{Upload, UploadFate, UploadRefusal, Uploads};
use super::waiting_counts::{CountedWait, WaitingCounts};
use crate::gate::observe::engagement::Engagement;
use crate::gate::observe::engagement_log::EngagementLog;
use crate::settings::{Domain, Gate as Settings};
use crate::watch::Flagged;
use ticket::Sending;
pub(crate) use ticket::Ticket;
use tollgate_core::decision::Act;

/// The time after which a client may send a request again for which its HTTP/2 connection had no memory.
const MEMORY_BACKOFF: Span = Span::from_secs(1);

/// The state of all decisions, shared by all threads of a gate.
pub(crate) struct Admission {
    /// The clock of all decisions.
    pub(crate) clock: Clock,
    rules: ArcSwap<Rules>,
    claims: ArcSwap<Claims>,
    /// The requests that rules hold.
    pub(crate) holds: Holds,
    /// The queues of the backends.
    pub(crate) queues: Queues,
    /// The requests that wait in the queues.
    waiting: WaitingCounts,
    uploads: Arc<Uploads>,
    /// The load of the backend.
    pub(crate) load: Load,
    /// The hash of routes, by which prices are learned.
    pub(crate) route_hasher: RouteHasher,
    /// The number of CPU cores of the backend in the settings, in thousandths: the bound of plausible reported costs.
    cores_milli: AtomicU32,
    /// The number of reports of backends about cost or load that were invalid or impossible.
    pub(crate) reports_ignored: AtomicU64,
    /// The keys that an operator has exempted.
    pub(crate) exemptions: Exemptions,
    /// The accounts that the watch has flagged.
    pub(crate) flagged: Arc<Flagged>,
    /// In observe mode: the numbers of uploads that would have been held, and that would have been refused.
    uploads_would: [AtomicU64; 2],
    /// In observe mode: the number of requests that a rule would have refused, so that the queue did not judge them.
    refused_before_queue: AtomicU64,
}

/// A request that the rules have admitted and that needs a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) client: IpAddr,
    /// Its user and priority.
    pub(crate) claim: Claim,
    /// Whether its body is buffered completely.
    pub(crate) is_whole: bool,
    /// The memory that it uses while it waits, in bytes.
    pub(crate) bytes: u32,
}

/// The counts of observe mode: requests that would have been held or refused. Among the rules, a request is counted for
/// the strictest one only. A request that both a rule and the queue would have held is counted for each. The queue does
/// not judge a request that a rule would have refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedCounts {
    /// Whether the gate is in observe mode. A single rule can be, too.
    pub(crate) is_observing: bool,
    /// The requests in observe mode.
    pub(crate) requests: u64,
    pub(crate) queue_would_hold: u64,
    pub(crate) queue_would_refuse: u64,
    pub(crate) rules_would_hold: u64,
    pub(crate) rules_would_refuse: u64,
}

impl Admission {
    /// Starts with the rules of `domain` and empty state.
    pub(crate) fn new(
        domain: &Domain,
        settings: &Settings,
        links: RemoteLinks<'_>,
        clock: Clock,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            rules: ArcSwap::from_pointee(Rules::load(domain, settings, links, &clock, None)?),
            claims: ArcSwap::from_pointee(Claims::new(domain, settings, None)),
            holds: Holds::default(),
            queues: Queues::new(settings, clock.clone()),
            waiting: WaitingCounts::default(),
            uploads: Arc::default(),
            load: Load::new(settings.bands.edges(), settings.pressure(), clock.now()),
            route_hasher: RouteHasher::default(),
            cores_milli: AtomicU32::new(settings.cores.as_milli()),
            reports_ignored: AtomicU64::new(0),
            exemptions: Exemptions::default(),
            flagged: Arc::default(),
            uploads_would: Default::default(),
            refused_before_queue: AtomicU64::default(),
            clock,
        })
        .inspect(|admission: &Self| admission.load.pin(settings.bands.pin))
    }

    /// Applies new settings. Unchanged parts keep their state.
    pub(crate) fn reload(
        &self,
        domain: &Domain,
        settings: &Settings,
        links: RemoteLinks<'_>,
    ) -> Result<(), BuildError> {
        let rules = Rules::load(domain, settings, links, &self.clock, Some(&self.rules.load()))?;
        self.rules.store(Arc::new(rules));
        self.claims.store(Arc::new(Claims::new(domain, settings, Some(&self.claims.load()))));
        self.queues.reload(settings);
        if settings.mode == Mode::Observe {
            self.uploads.release();
        }
        self.load.reload(settings.bands.edges(), settings.pressure());
        self.load.pin(settings.bands.pin);
        self.cores_milli.store(settings.cores.as_milli(), Ordering::Relaxed);
        Ok(())
    }

    /// The function that applies the orders of masters to the rules in force.
    pub(crate) fn apply_orders(self: &Arc<Self>) -> ApplyOrder {
        let known = Arc::downgrade(self);
        Box::new(move |rule, identifier, instruction, now| {
            if let Some(admission) = known.upgrade() {
                admission.rules().limiter.obey(rule, identifier, instruction, now);
            }
        })
    }

    /// Updates queues and load, if that is due. Any worker may call this at any time; `late` is by how much later than
    /// planned it runs.
    pub(crate) fn tick(&self, late: Span) {
        self.load.late(late);
        self.queues.tick();
        self.load.tick(self.clock.now(), || self.queues.take_wait());
    }

    /// The current time of the decision clock.
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The rules in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// The rules in force, borrowed for a short time.
    pub(crate) fn rules_now(&self) -> Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// Reduces each header and cookie that rules and claims use to one value, so that the backend sees the same value.
    pub(crate) fn unify(&self, fields: &mut Fields) {
        fields.unify(&self.rules.load().inputs);
        fields.unify(&self.claims.load().inputs);
    }

    /// The settings of users and priorities.
    pub(crate) fn claims(&self) -> Guard<Arc<Claims>> {
        self.claims.load()
    }

    /// The counts of observe mode.
    pub(crate) fn observed(&self) -> ObservedCounts {
        let (status, rules) = (self.queues.status(), self.rules.load());
        // A rule that is in observe mode itself would hold and refuse nothing if the gate enforced.
        let counted = |face: &&Face| !status.is_observing || face.observes_with_gate;
        let by_rules =
            |kind: usize| rules.faces.iter().filter(counted).map(|face| face.counters.read(kind)).sum::<u64>();
        let by_uploads = |kind: usize| self.uploads_would[kind].load(Ordering::Relaxed);
        ObservedCounts {
            is_observing: status.is_observing,
            requests: status.observed + self.refused_before_queue.load(Ordering::Relaxed),
            queue_would_hold: status.would_wait + by_uploads(0),
            queue_would_refuse: status.would_refuse + by_uploads(1),
            rules_would_hold: by_rules(2),
            rules_would_refuse: by_rules(3),
        }
    }

    /// Decides about a request by the rules, and returns after the hold if they hold it. Holds and refusals are written
    /// to `log`. Sets `ticket` before a hold begins, unless the request is refused. The ticket is not returned, because
    /// it is large and every function that returns it would copy it.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        request: &RequestView<'_>,
        log: &EngagementLog,
        ticket: &mut Option<Ticket>,
    ) -> Result<(), Refusal> {
        if let Some(held) = self.ask_rules(request, self.clock.now(), log, ticket).await? {
            tokio::time::sleep(held.wait.into()).await;
        }
        Ok(())
    }

    /// The user and priority of a request; `tenant` identifies the user if the settings do not.
    pub(crate) fn claim(&self, request: &RequestView<'_>, tenant: u64) -> Claim {
        let claims = self.claims.load();
        let is_flagged = claims.looks_at_flags && self.rules.load().is_flagged(request, &self.flagged);
        claims.of(&RequestView { is_flagged, ..*request }, tenant)
    }

    /// Waits for a permit in the queue that `pick` returns, after waiting for an upload slot if the body is not
    /// complete. Holds and refusals are written to `log`.
    pub(crate) async fn take_turn(
        &self,
        ticket: &mut Ticket,
        turn: Turn,
        pick: impl FnOnce(QueueRequest) -> Arc<Queue>,
        log: &EngagementLog,
    ) -> Result<(), Refusal> {
        let is_exempt = turn.claim.is_exempt || ticket.skips_queue;
        if !turn.is_whole {
            // In a box, so that requests without large bodies do not carry the memory for it.
            let upload = match is_exempt {
                true => None,
                false => Some(Box::pin(self.begin_upload(turn.client, log)).await?),
            };
            ticket.is_held |= upload.as_ref().is_some_and(|upload| upload.has_waited);
            ticket.sending = Some(Sending { upload, flow: Flow::new() });
        }
        let Turn { client, claim, bytes, .. } = turn;
        let request = self.queues.request(client, claim, ticket.route, bytes);
        let (permit, queued) = self.enter_queue(&pick(request), request, (client, is_exempt), log).await?;
        ticket.permit = Some(permit);
        ticket.queued = queued;
        ticket.is_held |= queued.is_some_and(|(act, _)| act == Act::Hold);
        if ticket.would != Some(Act::WouldRefuse) {
            ticket.would = queued.map(|(act, _)| act).filter(|act| *act != Act::Hold).or(ticket.would);
        }
        Ok(())
    }

    /// Checks budgets again when a request that no rule has held is about to be forwarded: other requests of its key
    /// may have cost more than expected in the meantime.
    pub(crate) fn recheck(&self, ticket: &Ticket, request: &RequestView<'_>, log: &EngagementLog) -> Option<Refusal> {
        let rules = self.rules.load();
        if !rules.has_budget() || matches!(ticket.decision.verdict, Verdict::Hold(_)) {
            return None;
        }
        let request = &RequestView { is_flagged: rules.is_flagged(request, &self.flagged), ..*request };
        let now = self.clock.now();
        let is_exempt = |rule| self.exemptions.covers(&rules.limiter, request, rule, now);
        let decision = rules.debt(request, ticket.reserved, is_exempt, self.load.band(), now)?;
        rules.count(&decision);
        if let Some(engagement) = by_rule(&rules, request, &decision, now) {
            log.record(&engagement, now);
        }
        Some(Refusal::by_rule(&rules, decision, now))
    }

    /// Waits for a slot for another upload of `client`.
    async fn begin_upload(&self, client: IpAddr, log: &EngagementLog) -> Result<Upload, Refusal> {
        let (hold, status) = (self.rules.load().hold, self.queues.status());
        let at_once = status.in_flight_max;
        let log_act = |act: Act, is_own: bool, backoff: Span| {
            let (reason, allowed) = match is_own {
                true => ("own-uploads", self.uploads.per_address_max()),
                false => ("uploads", Uploads::total_max(at_once)),
            };
            let bound = QueueBound { reason, observed: allowed, allowed };
            self.log_queue_act(client, log, act, (bound, None), backoff);
            reason
        };
        if status.is_observing {
            let (upload, would) = self.uploads.observe(client, at_once, hold);
            let count = |kind: usize| self.uploads_would[kind].fetch_add(1, Ordering::Relaxed);
            match would {
                UploadFate::Go => {}
                UploadFate::Wait => {
                    count(0);
                    log_act(Act::WouldHold, true, Span::ZERO);
                }
                UploadFate::Refuse(refused) => {
                    count(1);
                    log_act(Act::WouldRefuse, refused.is_own, refused.retry_after);
                }
            }
            return Ok(upload);
        }
        let begun = self.uploads.begin(client, at_once, hold).await;
        begun.map_err(|UploadRefusal { retry_after, is_own }| {
            Refusal::by_queue(log_act(Act::Refuse, is_own, retry_after), is_own, retry_after, None)
        })
    }

    /// Whether the queue does not judge a request, because a rule would have refused it if the gate did not only
    /// observe. Counts the request then.
    pub(crate) fn skips_queue(&self, rules: &Rules, decision: &Decision) -> bool {
        let skips = rules.would_refuse(decision);
        self.refused_before_queue.fetch_add(skips.into(), Ordering::Relaxed);
        skips
    }

    /// Waits for a permit in `queue`. Returns the permit, and the act of the queue with its reason, unless the request
    /// went at once.
    pub(crate) async fn enter_queue(
        &self,
        queue: &Arc<Queue>,
        request: QueueRequest,
        (client, is_exempt): (IpAddr, bool),
        log: &EngagementLog,
    ) -> Result<(Permit, Option<(Act, &'static str)>), Refusal> {
        if is_exempt {
            return Ok((queue.pass(request), None));
        }
        let (mut held, mut queued) = (None, None);
        let entered = queue
            .enter(request, |arrival, waits| match arrival {
                Arrival::Go(_) => {}
                Arrival::Wait(_, standing) if waits => {
                    queued = Some((Act::Hold, "backend-busy"));
                    let since = self.clock.now();
                    let counted = self.waiting.add(queue, request.client);
                    held = Some(HeldByQueue {
                        admission: self,
                        queue,
                        client,
                        log,
                        since,
                        standing,
                        counted,
                        is_refused: false,
                    });
                }
                Arrival::Wait(_, standing) => {
                    let bound = QueueBound::new(queue, standing, None);
                    queued = Some((Act::WouldHold, bound.reason));
                    self.log_queue_act(client, log, Act::WouldHold, (bound, Some(standing)), standing.wait);
                }
                Arrival::Refuse(CoreRefusal { reason, standing, retry_after }) => {
                    let bound = QueueBound::new(queue, standing, Some(reason));
                    queued = Some((Act::WouldRefuse, bound.reason));
                    self.log_queue_act(client, log, Act::WouldRefuse, (bound, Some(standing)), retry_after);
                }
            })
            .await;
        entered.map(|permit| (permit, queued)).map_err(|CoreRefusal { reason, standing, retry_after }| {
            let waited = held.as_ref().map(|held: &HeldByQueue<'_>| &held.counted);
            let are_own = self.waiting.are_own(queue, request.client, standing, waited);
            if let Some(held) = &mut held {
                held.is_refused = true;
            }
            let bound = QueueBound::new(queue, standing, Some(reason));
            self.log_queue_act(client, log, Act::Refuse, (bound, Some(standing)), retry_after);
            Refusal::by_queue(bound.reason, are_own, retry_after, Some(standing.wait))
        })
    }

    /// Refuses an HTTP/2 request because incomplete requests or unread responses take up the memory of its connection,
    /// and logs that.
    pub(crate) fn refuse_by_memory(&self, client: IpAddr, log: &EngagementLog) -> Refusal {
        let bound = QueueBound { reason: "connection-memory", observed: 0, allowed: 0 };
        self.log_queue_act(client, log, Act::Refuse, (bound, None), MEMORY_BACKOFF);
        Refusal::by_queue(bound.reason, false, MEMORY_BACKOFF, None)
    }

    /// Logs an act of the queue, or of the limits on uploads, which have no standing.
    fn log_queue_act(
        &self,
        client: IpAddr,
        log: &EngagementLog,
        act: Act,
        (bound, standing): (QueueBound, Option<Standing>),
        backoff: Span,
    ) {
        let bound = (bound.reason, bound.observed, bound.allowed);
        log.record(&Engagement::by_queue(client, self.load.band(), act, bound, backoff, standing), self.clock.now());
    }

    /// How long a request of `client` would wait in the queue now, for operators, and why it would not go at once.
    /// `request` gives the route and the site, if they are known. Of several backends, the one with the shortest wait
    /// counts.
    pub(crate) fn forecast(
        &self,
        client: IpAddr,
        request: Option<&impl Request>,
    ) -> Option<(Forecast, Option<QueueBound>)> {
        let route = request.map(|request| self.route_hasher.key(request));
        let claim = request.map_or_else(Claim::default, |request| self.claims.load().of(request, 0));
        let queues = match request {
            Some(request) => self.queues.at_host(request.host()),
            None => self.queues.all(),
        };
        let client = self.queues.client(client, claim);
        let forecasts = queues.into_iter().map(|queue| (queue.forecast(client, claim.weight_milli, route), queue));
        let best = forecasts.min_by_key(|(forecast, _)| (forecast.fate != Fate::Go, forecast.standing.wait));
        let (Forecast { standing, fate }, queue) = best?;
        let fate = if claim.is_exempt { Fate::Go } else { fate };
        let bound = match fate {
            Fate::Go => None,
            Fate::Wait => Some(QueueBound::new(&queue, standing, None)),
            Fate::Refuse(reason) => Some(QueueBound::new(&queue, standing, Some(reason))),
        };
        Some((Forecast { standing, fate }, bound))
    }

    /// Decides by the rules, and asks the shared store only if a rule that applies has its state there.
    async fn ask_rules(
        self: &Arc<Self>,
        request: &RequestView<'_>,
        now: Moment,
        log: &EngagementLog,
        ticket: &mut Option<Ticket>,
    ) -> Result<Option<HoldSlot<'_>>, Refusal> {
        let rules = self.rules.load();
        let request = &RequestView { is_flagged: rules.is_flagged(request, &self.flagged), ..*request };
        // Without a budget no price is needed. It is not looked up then, because a refusal must be cheap.
        let route = rules.has_budget().then(|| self.route_hasher.key(request));
        let expected = |route| rules.reservation(self.queues.expected(route, request.host()));
        let toll = route.map_or(Toll::ONE, |route| Toll::of_cpu(expected(route)));
        let band = self.load.band();
        if rules.is_local(request) {
            let decided = rules.decide(request, toll, band, now);
            return self.act(&rules, request, (route, toll), decided, (now, log), ticket);
        }
        let rules = Guard::into_inner(rules);
        // In a box, so that decisions from local state do not carry the memory for it.
        let decided = Box::pin(rules.ask(request, toll, band, &self.clock)).await;
        self.act(&rules, request, (route, toll), decided, (self.clock.now(), log), ticket)
    }

    /// Applies a decision of the rules: exemptions, a slot for a hold, the log, and the ticket or the refusal. A
    /// request that is to be held is refused if there is no room to hold it.
    fn act(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        request: &RequestView<'_>,
        (route, toll): (Option<RouteKey>, Toll),
        decided: (Decision, Charge),
        (now, log): (Moment, &EngagementLog),
        ticket: &mut Option<Ticket>,
    ) -> Result<Option<HoldSlot<'_>>, Refusal> {
        let (mut decision, mut charge) = self.exemptions.spare(&rules.limiter, request, toll, decided, now);
        let waiting = match decision.verdict {
            Verdict::Hold(until) => self.hold(rules, request, &decision, until.since(now)),
            _ => None,
        };
        if let (Verdict::Hold(until), None) = (decision.verdict, &waiting) {
            decision.verdict = Verdict::Refuse(until);
        }
        rules.count(&decision);
        if let Some(engagement) = by_rule(rules, request, &decision, now) {
            log.record(&engagement, now);
        }
        rules.report(request, &decision, &mut charge, now);
        if decision.verdict.is_refusal() {
            // There is a charge only if the rules held the request and there was no room to hold it.
            charge.refund(&rules.limiter, now);
            return Err(Refusal::by_rule(rules, decision, now));
        }
        let skips_queue = self.skips_queue(rules, &decision);
        *ticket = Some(Ticket {
            admission: self.clone(),
            decision,
            reserved: toll.cpu,
            charge: (!charge.is_empty()).then_some(charge),
            is_settled: false,
            generation: rules.generation,
            route: route.unwrap_or_else(|| self.route_hasher.key(request)),
            sending: None,
            permit: None,
            started: None,
            cpu: None,
            account: None,
            queued: None,
            skips_queue,
            toll: None,
            is_held: decision.act() == Some(Act::Hold),
            would: decision.act().filter(|act| matches!(act, Act::WouldHold | Act::WouldRefuse)),
        });
        Ok(waiting)
    }

    /// A slot to hold a request for `wait`, if there is room.
    pub(crate) fn hold(
        &self,
        rules: &Rules,
        request: &impl Request,
        decision: &Decision,
        wait: Span,
    ) -> Option<HoldSlot<'_>> {
        let index = decision.rule?;
        let mut key = KeyText::default();
        rules.limiter.rule(index)?.class.write_key(request, &mut key);
        self.holds.take(index, key.as_bytes(), rules.hold, wait)
    }
}

/// A request that the queue holds. Dropping it, at the end of the wait, logs the hold with its length, unless the
/// request was refused.
struct HeldByQueue<'a> {
    admission: &'a Admission,
    queue: &'a Queue,
    client: IpAddr,
    log: &'a EngagementLog,
    since: Moment,
    standing: Standing,
    counted: CountedWait<'a>,
    is_refused: bool,
}

impl Drop for HeldByQueue<'_> {
    fn drop(&mut self) {
        if self.is_refused {
            return;
        }
        let (bound, waited) =
            (QueueBound::new(self.queue, self.standing, None), self.admission.now().since(self.since));
        self.admission.log_queue_act(self.client, self.log, Act::Hold, (bound, Some(self.standing)), waited);
    }
}

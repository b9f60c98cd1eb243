//! One request, from its head to its line in the access log.
//!
//! [`Exchange::run`] is the whole way of a request. Its phases run in order, and each returns what the next one needs.
//! A phase that cannot pass the request on returns an [`End`] instead, which skips the phases up to the settlement:
//!
//! | phase | does |
//! |---|---|
//! | [`identify`](Exchange::identify) | determines the client, behind trusted proxies too |
//! | [`read_json`](Exchange::read_json) | reads a small body before the decision, if rules use values of its JSON |
//! | [`decide`](Exchange::decide) | asks the rules, which may hold or refuse the request |
//! | [`buffer_body`](Exchange::buffer_body) | reads a small body, so that a stalled client holds no permit |
//! | [`queue`](Exchange::queue) | waits for an upload slot and a permit to use a backend, then checks budgets again |
//! | [`begin_forwarding`](Exchange::begin_forwarding) | counts it; fails if the client leaves many responses unread |
//! | [`forward`](Exchange::forward) | connects to a backend and streams both bodies; retries where that is safe |
//! | [`settle`](Exchange::settle) | charges the measured cost and releases the permit |
//! | [`finish`](Exchange::finish) | sends the client the rest of the response, or a response of the gate's own |
//! | [`record`](Exchange::record) | writes the trace and the line of the access log |
//!
//! The request is settled when the backend has finished, before `finish`: the client may still be reading. If the task
//! is cancelled, dropping the [`Ticket`] settles it.

mod attempt;
mod body_type;
mod departure;
mod stream;

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use tollgate_core::request::{Request, host_of};
use tollgate_core::time::{Moment, Span};
use tollgate_wire::http1::hop_by_hop::strip_nominated;
use tollgate_wire::http1::{Fault, Length, Name, RequestHead, ResponseHead};
use tollgate_wire::json_body;

use super::access_record::AccessRecord;
use super::backend::h1::H1Connection;
use super::backend::pool::Wanted;
use super::backend::sites::SiteBackends;
use super::backend::{AllDown, Backend, BackendSlot, Backends, connect};
use super::body::{PeerError, Piece, Rest, Sink as _, Source};
use super::download::drain;
use super::halves::{ClientBody, GATHERED_MAX, Reply, Sent};
use super::own_answer;
use super::scratch::BackendScratch;
use super::spool::Overflow;
use super::trace;
use super::worker::Worker;
use crate::gate::decide::admission::{Outcome, Ticket, Turn};
use crate::gate::decide::identify::{ConnectionPeer, RequestView, user_agent};
use crate::gate::decide::refusal::{Refusal, jittered_secs, spread_of};
use crate::gate::net::timer::CLOSED_AT_ONCE;
use crate::gate::observe::counters::WorkerCounter;
use crate::gate::observe::failure_log::Failure;
use crate::settings::Gate as Settings;
use crate::telemetry::Trace;
use attempt::{AttemptEnd, Upstream};
use body_type::BodyType;
use departure::{or_departure, unless_departed};

/// Further attempts for a request that was not sent, because its connection took no more requests.
const UNSENT_RETRIES_MAX: u32 = 2;
/// Backends that are tried for one request if no connection can be made.
const BACKENDS_TRIED_MAX: usize = 3;

/// The state of the client's connection after an exchange.
pub(crate) enum After {
    /// The client may send another request.
    Keep,
    /// The connection is closed once the client has had time to read the response.
    Close,
    /// The connection is closed at once, because the response broke off.
    Cut,
    /// The client has left.
    Left,
    /// The request was refused without a response, for which there is no memory. The client may send it again.
    Unanswered,
    /// The connection is no longer HTTP: it is joined with the connection to the backend.
    Tunnel(Box<H1Connection>, BackendSlot),
}

/// How the phases before the settlement ended. It determines what the client is still sent.
enum End {
    /// The backend has sent its whole response. The client may not have read all of it.
    Answered {
        /// Whether the client may send another request.
        keep: bool,
        /// Whether the backend got the whole request before its response ended.
        is_complete: bool,
    },
    /// The backend has switched to another protocol.
    Upgraded(Box<H1Connection>, BackendSlot),
    /// The client left, did not send what it announced, or stopped reading.
    ClientFailed {
        error: PeerError,
        /// Whether the client has been sent a part of the response.
        has_begun: bool,
        /// How the backend's part ended; none if the request was given up before, or is an event stream, which is
        /// settled already.
        outcome: Option<Outcome>,
    },
    /// A rule or the queue refused the request.
    Refused(Refusal),
    /// The request was refused, and the client's unread responses leave no memory for another one.
    Unanswered(Refusal),
    /// The request cannot be served. The client gets a response with this status.
    Failed { status: u16, detail: &'static str, retry_secs: Option<u64> },
    /// The client gets nothing more.
    Cut,
}

impl End {
    /// The client left before its request was forwarded.
    const LEFT: Self = Self::ClientFailed { error: PeerError::Gone, has_begun: false, outcome: None };

    /// How the backend's part ended; none if nobody waits for it any more.
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Answered { .. } | Self::Upgraded(..) => Some(Outcome::Answered),
            Self::ClientFailed { outcome, .. } => *outcome,
            Self::Refused(_) | Self::Unanswered(_) | Self::Failed { .. } | Self::Cut => Some(Outcome::Failed),
        }
    }
}

/// A request that was read, its connection, and memory for its response.
pub(crate) struct Inbound<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) settings: &'a Settings,
    pub(crate) peer: &'a ConnectionPeer,
    pub(crate) request: &'a mut RequestHead,
    pub(crate) response: &'a mut ResponseHead,
    /// Whether the request permits further ones on its connection.
    pub(crate) keep: bool,
}

/// One request on its way through the gate.
pub(crate) struct Exchange<'a, B, R> {
    inbound: Inbound<'a>,
    scratch: &'a mut BackendScratch,
    body: &'a mut B,
    reply: &'a mut R,
    /// The address of the client; that of the peer until the client is identified.
    client: IpAddr,
    /// The arrival of the request, later by the time in which the gate waited for its body.
    since: Moment,
    /// The request's permit and charges; set when the rules have admitted it.
    ticket: Option<Ticket>,
    /// Whether all of the body has arrived; none until the gate has tried to read it.
    is_whole: Option<bool>,
    /// The values of a JSON body that rules use, by pointer.
    json: Vec<(String, Vec<u8>)>,
    /// Buffers the part of the response that the client has not read; set when the request is forwarded.
    overflow: Option<Overflow<'a>>,
    trace: Option<Trace>,
    access_record: Option<AccessRecord>,
}

impl<'a, B: ClientBody, R: Reply> Exchange<'a, B, R> {
    pub(crate) fn new(
        inbound: Inbound<'a>,
        scratch: &'a mut BackendScratch,
        body: &'a mut B,
        reply: &'a mut R,
    ) -> Self {
        Self {
            access_record: AccessRecord::begin(inbound.worker),
            client: inbound.peer.address,
            since: Moment::ZERO,
            ticket: None,
            is_whole: None,
            json: Vec::new(),
            overflow: None,
            trace: None,
            inbound,
            scratch,
            body,
            reply,
        }
    }

    /// Serves the request.
    pub(crate) async fn run(&mut self) -> After {
        let end = match self.carry().await {
            Ok(end) | Err(end) => end,
        };
        self.settle(&end);
        let after = self.finish(end).await;
        self.record();
        after
    }

    /// Responds to a request that cannot be read. No phase applies to it.
    pub(crate) async fn reject(&mut self, fault: Fault) -> After {
        self.inbound.worker.counters.count(WorkerCounter::Malformed);
        let body = own_answer::malformed(fault, self.inbound.response);
        let after = self.answer(&body, false).await;
        if let Some(record) = self.access_record.take() {
            let record = record.without_decision("malformed");
            record.write(self.inbound.worker, self.client, None, self.inbound.response, self.reply.sent());
        }
        after
    }

    /// The phases until the backend has finished.
    async fn carry(&mut self) -> Result<End, End> {
        self.identify()?;
        self.read_json().await?;
        self.decide().await?;
        let is_whole = self.buffer_body(false).await?;
        let picked = self.queue(is_whole).await?;
        self.begin_forwarding()?;
        self.forward(picked, is_whole).await
    }

    fn identify(&mut self) -> Result<(), End> {
        let Inbound { worker, settings, peer, request, .. } = &mut self.inbound;
        if !peer.judge(settings) {
            self.access_record = self.access_record.map(|record| record.without_decision("proxy-not-trusted"));
            return Err(End::Cut);
        }
        let shared = &worker.shared;
        if peer.is_untrusted() {
            shared.proxy_detector.look(&worker.proxy_sampler, peer.address, request, &shared.settings);
        }
        self.client = peer.client(request, settings);
        strip_nominated(&mut request.fields);
        shared.admission.unify(&mut request.fields);
        self.since = shared.stats.clock.now();
        self.trace = trace::begin(worker, peer, &RequestView::new(self.client, request));
        if shared.backends.load().is_unknown(host_of(&request.authority)) {
            worker.counters.count(WorkerCounter::Misdirected);
            self.undecided("unknown-host");
            return Err(End::Failed { status: 421, detail: "no site with this host is served here", retry_secs: None });
        }
        Ok(())
    }

    /// The backends for the host of the request. A reload may change them at any time.
    fn backends<'b>(&self, backends: &'b SiteBackends) -> &'b Backends {
        backends.of(host_of(&self.inbound.request.authority))
    }

    /// Looks up the values of a JSON body that rules use. Only if there are such rules is the body read before the
    /// decision. A body that cannot be read, or that backends may read in different ways, has the value
    /// [`AMBIGUOUS`](json_body::AMBIGUOUS), which all such bodies share. A form has no value unless its body is valid
    /// JSON.
    async fn read_json(&mut self) -> Result<(), End> {
        let admission = &self.inbound.worker.shared.admission;
        if self.body.has_ended() || admission.rules_now().inputs.json_pointers.is_empty() {
            return Ok(());
        }
        let body_type = BodyType::of(&self.inbound.request.fields);
        if body_type != BodyType::Form {
            self.send_continue(body_type).await?;
        }
        let body = self.buffer_body(body_type == BodyType::Json).await?.then(|| self.body.gathered());
        if body.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let body = body.filter(|_| body_type != BodyType::Several);
        for pointer in &self.inbound.worker.shared.admission.rules_now().inputs.json_pointers {
            let value = match &body {
                Some(body) => json_body::find(body, pointer),
                None => Some(json_body::AMBIGUOUS.to_vec()),
            };
            if let Some(value) = value.filter(|value| body_type != BodyType::Form || value != json_body::AMBIGUOUS) {
                self.json.push((pointer.clone(), value));
            }
        }
        Ok(())
    }

    /// Sends the 100 that a client expects before it sends a small body, or JSON of unknown length. The backend then
    /// does not get the `Expect`.
    async fn send_continue(&mut self, body_type: BodyType) -> Result<(), End> {
        let Inbound { request, response, .. } = &mut self.inbound;
        let is_small = match request.length {
            Length::Fixed(length) => length <= GATHERED_MAX as u64,
            _ => body_type == BodyType::Json,
        };
        if !is_small || !request.expects_continue() {
            return Ok(());
        }
        request.fields.retain(|field| field.name != Name::Expect);
        response.clear();
        response.status = 100;
        let sent = self.reply.interim(response).await;
        sent.map_err(|error| End::ClientFailed { error, has_begun: false, outcome: None })
    }

    async fn decide(&mut self) -> Result<(), End> {
        let Inbound { worker, request, .. } = &self.inbound;
        let view = RequestView { json: &self.json, ..RequestView::new(self.client, request) };
        let admitted = pin!(worker.shared.admission.admit(&view, &worker.engagements, &mut self.ticket));
        or_departure(admitted, self.body).await?.map_err(End::Refused)
    }

    /// Reads a small body, and returns whether all of it has arrived. The body of a client that expects a 100 is not
    /// read: the backend sends the 100, and has to see the request first. The gate waits once: a second call returns
    /// the result of the first. With `is_awaited`, a body without a known length is awaited like one with a known
    /// length.
    async fn buffer_body(&mut self, is_awaited: bool) -> Result<bool, End> {
        if self.body.has_ended() {
            return Ok(true);
        }
        if let Some(is_whole) = self.is_whole {
            return Ok(is_whole);
        }
        if self.inbound.request.expects_continue() {
            return Ok(false);
        }
        let clock = &self.inbound.worker.shared.stats.clock;
        let began = clock.now();
        let gathered = self.body.gather(self.inbound.request.length, is_awaited).await;
        // The gate waited for the client: that is no wait of the request.
        self.since = self.since + clock.now().since(began);
        match gathered {
            Ok(is_whole) => {
                self.is_whole = Some(is_whole);
                Ok(is_whole)
            }
            Err(error) => {
                match error {
                    PeerError::Slow => self.undecided("slow-body"),
                    PeerError::Malformed(_) => self.undecided("malformed"),
                    PeerError::Gone => {}
                }
                Err(End::ClientFailed { error, has_begun: false, outcome: None })
            }
        }
    }

    /// Returns the backend whose queue granted the permit; none if the site has no backends.
    async fn queue(&mut self, is_whole: bool) -> Result<Option<Arc<Backend>>, End> {
        let Inbound { worker, peer, request, .. } = &self.inbound;
        let (admission, log) = (&worker.shared.admission, &worker.engagements);
        let view = RequestView { json: &self.json, ..RequestView::new(self.client, request) };
        let ticket = self.ticket.as_mut().expect("the rules have admitted the request");
        if is_whole {
            self.body.enters_queue();
        }
        let turn = Turn {
            client: self.client,
            claim: admission.claim(&view, peer.tenant(&view, self.client)),
            is_whole,
            bytes: waiting_bytes(request, self.body),
        };
        let mut picked = None;
        let pick = |request| {
            let backends = worker.shared.backends.load();
            picked = backends.of(view.host()).pick(request).cloned();
            picked.as_ref().map_or_else(|| admission.queues.first(), |backend| backend.queue.clone())
        };
        let granted = or_departure(pin!(admission.take_turn(ticket, turn, pick, log)), self.body).await;
        self.body.leaves_queue();
        granted?.map_err(End::Refused)?;
        if self.body.is_unread() {
            return Err(End::Unanswered(admission.refuse_by_memory(self.client, log)));
        }
        match admission.recheck(ticket, &view, log) {
            Some(refusal) => Err(End::Refused(refusal)),
            None => Ok(picked),
        }
    }

    fn begin_forwarding(&mut self) -> Result<(), End> {
        let worker = self.inbound.worker;
        let shared = &worker.shared;
        if shared.buffers.budget.has_too_many_stalled(self.client) {
            self.undecided("unread-responses");
            return Err(self.fail((503, "too many responses wait for this client to read them"), 1, None, None));
        }
        let request = &mut *self.inbound.request;
        let ticket = self.ticket.as_mut().expect("the rules have admitted the request");
        let mut account = shared.stats.admitted(self.client, user_agent(request), self.since);
        trace::forwarded(&mut self.trace, ticket, &mut account, request);
        if let Some(record) = &mut self.access_record {
            record.admitted(ticket, account.wait);
        }
        ticket.account = Some(account);
        self.body.forwarded();
        self.overflow = Some(Overflow::new(&shared.buffers, self.client, self.reply.task_bytes()));
        Ok(())
    }

    /// Sends the request to the backend that was picked when it entered the queue, or to another one if no connection
    /// can be made. The permit stays with the picked backend: the request was admitted once and does not wait again. If
    /// a reload has removed the site meanwhile, the picked backend still serves the request.
    async fn forward(&mut self, picked: Option<Arc<Backend>>, is_whole: bool) -> Result<End, End> {
        let (worker, settings) = (self.inbound.worker, self.inbound.settings);
        let mut wanted = if self.may_be_sent_twice() { Wanted::Any } else { Wanted::Recent };
        let (mut avoid, mut connect_failures, mut unsent_retries, mut has_resent) = (None, 0, 0, false);
        loop {
            let chosen = self.backends(&worker.shared.backends.load()).choose(picked.as_ref(), avoid, is_whole);
            let no_backend =
                |AllDown(wait): AllDown| self.fail((503, "no backend is up"), wait.as_secs() + 1, None, None);
            let slot = chosen.map_err(no_backend)?;
            // A connection from before the outage does not show whether new ones can be made.
            let wanted_now = if slot.is_probe() { Wanted::New } else { wanted };
            let opened = or_departure(pin!(Upstream::open(worker, settings, &slot, wanted_now)), self.body).await?;
            let upstream = match opened {
                Ok(upstream) => upstream,
                Err(error) => {
                    if connect::is_shortage(&error) {
                        return Err(self.no_room(&error));
                    }
                    slot.backend.connect_failed(&error.to_string());
                    avoid = Some(slot.backend.id);
                    connect_failures += 1;
                    // No backend has received anything, so any request may go to another one.
                    let count = self.backends(&worker.shared.backends.load()).len();
                    if connect_failures < count.min(BACKENDS_TRIED_MAX) {
                        continue;
                    }
                    return Err(self.unreachable(&error, &slot));
                }
            };
            let was_used = upstream.was_used();
            if !was_used {
                slot.backend.connected();
            }
            let ticket = self.ticket.as_mut().expect("the rules have admitted the request");
            ticket.started();
            ticket.goes_to(&slot.backend.queue);
            match self.attempt(upstream, &slot).await {
                AttemptEnd::Last(end) => return Ok(end),
                AttemptEnd::Upgraded(connection) => return Ok(End::Upgraded(connection, slot)),
                AttemptEnd::Unsent => {
                    if let Some(ticket) = &mut self.ticket {
                        ticket.unsent();
                    }
                    if unsent_retries == UNSENT_RETRIES_MAX {
                        return Err(self.backend_failed(PeerError::Gone, false, &slot));
                    }
                    worker.counters.count(WorkerCounter::Retried);
                    unsent_retries += 1;
                    wanted = Wanted::New;
                }
                AttemptEnd::BackendFailed { error: PeerError::Gone, has_begun: false, .. }
                    if was_used && !has_resent && self.may_be_sent_twice() =>
                {
                    // The backend closed an idle connection at the moment at which the gate used it again.
                    worker.counters.count(WorkerCounter::Retried);
                    has_resent = true;
                    wanted = Wanted::New;
                }
                AttemptEnd::BackendFailed { error, is_cut, .. } => {
                    return Err(self.backend_failed(error, is_cut, &slot));
                }
            }
        }
    }

    /// Settles the request. An event stream was settled when its head came; then this changes nothing.
    fn settle(&mut self, end: &End) {
        let Some(ticket) = &mut self.ticket else { return };
        match end.outcome() {
            Some(outcome) => ticket.done(outcome),
            None => ticket.end(),
        }
        if let Some(record) = &mut self.access_record {
            record.cost = ticket.toll;
        }
    }

    /// The client's part after the settlement.
    async fn finish(&mut self, end: End) -> After {
        match end {
            End::Answered { keep, .. } => match self.drain().await {
                Ok(()) if keep => After::Keep,
                Ok(()) => After::Close,
                Err(PeerError::Gone) => self.left(),
                Err(_) => After::Cut,
            },
            End::Upgraded(connection, slot) => match self.drain_head().await {
                Ok(()) => After::Tunnel(connection, slot),
                Err(_) => After::Cut,
            },
            End::ClientFailed { error: PeerError::Gone, .. } => self.left(),
            End::ClientFailed { has_begun: true, .. } | End::Cut => After::Cut,
            End::ClientFailed { error: PeerError::Malformed(detail), .. } => {
                self.answer_failure(400, detail, None, false).await
            }
            End::ClientFailed { error: PeerError::Slow, .. } => {
                self.answer_failure(408, "the request took too long to arrive", None, false).await
            }
            End::Refused(refusal) => self.refuse(&refusal).await,
            End::Unanswered(refusal) => self.refuse_unanswered(&refusal),
            End::Failed { status, detail, retry_secs } => {
                let keep = self.can_keep();
                self.answer_failure(status, detail, retry_secs, keep).await
            }
        }
    }

    fn record(&mut self) {
        let Inbound { worker, request, response, .. } = &self.inbound;
        let sent = self.reply.sent();
        if let Some(mut trace) = self.trace.take() {
            trace.answered(if sent.has_begun { response.status } else { 0 });
        }
        if let Some(record) = self.access_record.take() {
            record.write(worker, self.client, Some(request), response, sent);
        }
    }
}

/// Parts of the phases.
impl<B: ClientBody, R: Reply> Exchange<'_, B, R> {
    /// Records why the request is not forwarded, if neither a rule nor the queue refused it.
    fn undecided(&mut self, reason: &'static str) {
        trace::undecided(&mut self.trace, reason);
        self.access_record = self.access_record.map(|record| record.without_decision(reason));
    }

    /// Whether sending the request a second time does no harm.
    fn may_be_sent_twice(&self) -> bool {
        let request = &self.inbound.request;
        matches!(request.length, Length::Empty | Length::Fixed(0)) && request.is_idempotent()
    }

    /// The gate itself is short of descriptors or memory, so it closes idle connections.
    fn no_room(&self, error: &io::Error) -> End {
        self.inbound.worker.timers.close_idle(CLOSED_AT_ONCE);
        self.fail((503, "the gate has no room for another connection"), 1, Some(error), None)
    }

    fn unreachable(&self, error: &io::Error, slot: &BackendSlot) -> End {
        let status = if error.kind() == io::ErrorKind::TimedOut { 504 } else { 502 };
        self.fail((status, "the backend cannot be reached"), 1, Some(error), Some(slot))
    }

    /// The backend failed. `is_cut`: a part of its response was already sent to the client.
    fn backend_failed(&self, error: PeerError, is_cut: bool, slot: &BackendSlot) -> End {
        self.inbound.worker.counters.count(WorkerCounter::BackendFailed);
        if is_cut {
            let reason = match error {
                PeerError::Gone => "the backend closed the connection in the middle of its answer",
                PeerError::Slow => "the backend stopped in the middle of its answer",
                PeerError::Malformed(what) => what,
            };
            self.log_failure(None, reason, None, Some(slot));
            return End::Cut;
        }
        match error {
            PeerError::Gone => {
                self.fail((502, "the backend closed the connection without an answer"), 1, None, Some(slot))
            }
            PeerError::Slow => self.fail((504, "the backend took too long"), 1, None, Some(slot)),
            PeerError::Malformed(what) => {
                self.log_failure(Some(502), what, None, Some(slot));
                // Clients are not shown the details of the backend.
                End::Failed { status: 502, detail: "the backend's answer is not HTTP", retry_secs: Some(1) }
            }
        }
    }

    /// Logs a failure, and ends the exchange with a response that names it.
    fn fail(
        &self,
        (status, detail): (u16, &'static str),
        retry_secs: u64,
        error: Option<&io::Error>,
        slot: Option<&BackendSlot>,
    ) -> End {
        self.log_failure(Some(status), detail, error, slot);
        End::Failed { status, detail, retry_secs: Some(retry_secs) }
    }

    /// `status`: of the gate's own response; none if a response of the backend was cut off.
    fn log_failure(
        &self,
        status: Option<u16>,
        reason: &'static str,
        error: Option<&io::Error>,
        slot: Option<&BackendSlot>,
    ) {
        let Inbound { worker, request, .. } = &self.inbound;
        let failure = Failure { status, reason, error, backend: slot.map(|slot| &slot.backend.url) };
        worker.failures.record(&failure, request, self.client, worker.shared.admission.now());
    }

    /// Sends the part of the response that the client has not read, as long as the client is there.
    async fn drain(&mut self) -> Result<(), PeerError> {
        let Some(overflow) = &mut self.overflow else { return Ok(()) };
        unless_departed(pin!(drain(self.reply.body(), overflow)), self.body).await?
    }

    /// Sends the head of a response that switches protocols, before anything goes through the tunnel.
    async fn drain_head(&mut self) -> Result<(), PeerError> {
        let Some(overflow) = &mut self.overflow else { return Ok(()) };
        drain(self.reply.body(), overflow).await
    }

    /// The client has left.
    fn left(&self) -> After {
        self.inbound.worker.counters.count(WorkerCounter::ClientLeft);
        After::Left
    }

    /// Records a refusal.
    fn refused(&mut self, refusal: &Refusal) {
        let Inbound { worker, request, .. } = &mut self.inbound;
        let stats = &worker.shared.stats;
        stats.spenders.refused(self.client, || user_agent(request), self.since);
        worker.counters.count(WorkerCounter::Refused);
        trace::refused(&mut self.trace, refusal);
        if let Some(record) = &mut self.access_record {
            record.refused(refusal, stats.clock.now().since(self.since));
        }
    }

    async fn refuse(&mut self, refusal: &Refusal) -> After {
        self.refused(refusal);
        let Inbound { worker, settings, request, response, .. } = &mut self.inbound;
        let random = spread_of(self.client, worker.timers.now_ms());
        let body = own_answer::refuse(refusal, request, response, &settings.pages, random);
        let keep = self.can_keep();
        self.answer(&body, keep).await
    }

    /// Refuses the request without a response. The access log has the status that the response would have had.
    fn refuse_unanswered(&mut self, refusal: &Refusal) -> After {
        self.refused(refusal);
        let Inbound { worker, request, response, .. } = &mut self.inbound;
        worker.counters.count(WorkerCounter::Unbuffered);
        response.clear();
        response.status = refusal.status();
        if let Some(record) = self.access_record.take() {
            let sent = Sent { has_begun: true, ..self.reply.sent() };
            record.write(worker, self.client, Some(request), response, sent);
        }
        After::Unanswered
    }

    /// Responds that the request cannot be served.
    async fn answer_failure(&mut self, status: u16, detail: &str, retry_secs: Option<u64>, keep: bool) -> After {
        let Inbound { worker, settings, request, response, .. } = &mut self.inbound;
        let random = spread_of(self.client, worker.timers.now_ms());
        let retry = retry_secs.map(|secs| jittered_secs(Span::from_secs(secs), random));
        let body = own_answer::fail(request, status, detail, retry, response, &settings.pages);
        self.answer(&body, keep).await
    }

    /// Whether the connection can be kept although the request is not forwarded: the rest of its body must be small
    /// enough to be read.
    fn can_keep(&self) -> bool {
        let Inbound { settings, request, keep, .. } = &self.inbound;
        let is_drainable = match request.length {
            Length::Empty => true,
            Length::Fixed(length) => length <= settings.bounds.refused_body_bytes_max,
            Length::Chunked | Length::UntilClose => false,
        };
        *keep && is_drainable && !request.expects_continue()
    }

    /// Sends a response of the gate's own, whose head is in `inbound`. The rest of the request's body is read if the
    /// connection is to be kept.
    async fn answer(&mut self, body: &[u8], keep: bool) -> After {
        let Inbound { worker, settings, response, .. } = &mut self.inbound;
        let keep = keep && !worker.is_draining();
        response.fields.push(b"date", worker.date().as_bytes());
        let sent = async {
            self.reply.begin(response, keep)?;
            if !body.is_empty() {
                self.reply.body().send(body, Rest::End).await?;
            }
            self.reply.body().end(None).await
        };
        if sent.await.is_err() {
            return After::Cut;
        }
        let bytes_max = settings.bounds.refused_body_bytes_max;
        let can_keep = keep && (self.body.has_ended() || discard(self.body, bytes_max).await == Ok(true));
        if can_keep { After::Keep } else { After::Close }
    }
}

/// The memory of a request while it waits: its task, its head, and the buffered part of its body.
fn waiting_bytes(head: &RequestHead, body: &impl ClientBody) -> u32 {
    let head_bytes = head.target().len() + head.fields.bytes();
    u32::try_from(body.task_bytes() + head_bytes + body.buffered_bytes()).unwrap_or(u32::MAX)
}

/// Reads a body and drops it. Returns whether it ended within the bound.
async fn discard(body: &mut impl Source, bytes_max: u64) -> Result<bool, PeerError> {
    let mut left = bytes_max;
    loop {
        match body.next().await? {
            Piece::Data(data, _) if data.len() as u64 <= left => left -= data.len() as u64,
            Piece::Data(..) => return Ok(false),
            Piece::End(_) => return Ok(true),
        }
    }
}

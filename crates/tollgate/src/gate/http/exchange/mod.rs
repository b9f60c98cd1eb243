//! One request on its way through: identify, ask, find a backend, talk to it ([`converse`]), and try another where that is safe.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tollgate_core::time::Span;
use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::hop_by_hop::strip_nominated;
use tollgate_wire::http1::{Length, RequestHead, ResponseHead};

use super::backend::h1::{self, H1Answer};
use super::backend::health::Asked;
use super::backend::pool::Wanted;
use super::backend::{AllDown, Place, connect, h2};
use super::body::{Broken, Piece, Rest, Source};
use super::conversation::{ClientBody, ConversationState, Ended, Forward as _, Reply, Topic, converse};
use super::download::finish;
use super::forward;
use super::h1_body::{BodyWriter, Pace};
use super::h2_head;
use super::spool::Overflow;
use super::trace;
use super::worker::Worker;
use crate::gate::decide::admission::{Admitted, Outcome, Ticket, Turn};
use crate::gate::decide::identify::{Peer, RequestView};
use crate::gate::decide::refusal::{OwnAnswer, Refusal, jittered_secs, spread_of};
use crate::gate::net::buffer::Buffer;
use crate::gate::net::socket::Socket;
use crate::gate::observe::access_log::AccessRecord;
use crate::gate::observe::failure_log::Failure;
use crate::gate::serve::listener;
use crate::settings::{Gate as Settings, Protocol};

/// The memory an exchange works in; used again for the next one.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) request_decoder: Decoder,
    pub(crate) response_decoder: Decoder,
    pub(crate) client_out: Vec<u8>,
    pub(crate) backend_out: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// What happens to the client's connection afterwards.
pub(crate) enum After {
    /// It may send another request.
    Keep,
    /// It is closed, once the client has had time to read the answer.
    Close,
    /// It is closed at once: the answer broke off.
    Cut,
    /// There is nobody to answer.
    Left,
    /// It is no longer HTTP: both connections become one.
    Tunnel(Box<h1::Connection>, Place),
}

/// What an exchange needs to know besides the two sides.
pub(crate) struct Visit<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) settings: &'a Settings,
    pub(crate) peer: &'a Peer,
    /// The address of the client: the peer's own until the request has been read for what trusted proxies write.
    pub(crate) client: IpAddr,
    pub(crate) request: &'a mut RequestHead,
    pub(crate) response: &'a mut ResponseHead,
    pub(crate) decoder: &'a mut Decoder,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) value: &'a mut Vec<u8>,
    /// Whether the client's connection can be kept, as far as the request goes.
    pub(crate) keep: bool,
}

/// Carries one request through, and logs it.
pub(crate) async fn exchange(mut visit: Visit<'_>, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
    let mut record = AccessRecord::begin(visit.worker);
    let after = carry(&mut visit, &mut record, body, reply).await;
    if let Some(record) = record {
        record.write(visit.worker, visit.client, Some(visit.request), visit.response, reply.sent());
    }
    after
}

async fn carry(
    visit: &mut Visit<'_>,
    record: &mut Option<AccessRecord>,
    body: &mut impl ClientBody,
    reply: &mut impl Reply,
) -> After {
    if !visit.peer.judge(visit.settings) {
        *record = record.map(|record| record.without_decision("proxy-not-trusted"));
        return After::Cut;
    }
    let shared = &visit.worker.shared;
    shared.proxy_detector.look(&visit.worker.proxy_sampler, visit.peer, visit.request, &shared.settings);
    let client = visit.peer.client(visit.request, visit.settings);
    visit.client = client;
    strip_nominated(&mut visit.request.fields);
    visit.worker.shared.admission.unify(&mut visit.request.fields);
    let view = RequestView { client, head: visit.request, is_flagged: false };
    let (admission, sight) = (&visit.worker.shared.admission, &visit.worker.shared.sight);
    let (mut since, mut told) = (sight.clock().now(), trace::begin(visit.worker, visit.peer, &view));
    let mut admitted = match or_departure(admission.admit(&view, &visit.worker.engagements), body).await {
        Ok(admitted) => admitted,
        Err(_) => return visit.left(),
    };
    let (mut picked, mut whole) = (None, true);
    if let Admitted::Ticket(ticket) = &mut admitted {
        if !body.has_ended() {
            let began = sight.clock().now();
            whole = match gather(view.head, body).await {
                Ok(whole) => whole,
                Err(Broken::Gone) => return visit.left(),
                Err(broken) => {
                    let after = visit.client_broke(broken, reply).await;
                    trace::over(told, visit.response);
                    return after;
                }
            };
            // The client took this long, not the gate.
            since = since + sight.clock().now().since(began);
        }
        let turn = Turn {
            client,
            claim: admission.claim(&view, visit.peer.tenant(&view, client)),
            is_whole: whole,
            bytes: waiting_bytes(view.head, whole),
        };
        let pick = |entering| {
            let backends = visit.worker.shared.backends.load();
            let backend = backends.pick(entering);
            picked = backend.map(|backend| backend.id);
            backend.map_or_else(|| admission.queues().first(), |backend| backend.queue.clone())
        };
        let turn = admission.take_turn(ticket, turn, pick, &visit.worker.engagements);
        match or_departure(turn, body).await {
            Ok(Ok(())) => {
                if let Some(refusal) = admission.recheck(ticket, &view, &visit.worker.engagements) {
                    admitted = Admitted::Refused(refusal);
                }
            }
            Ok(Err(refusal)) => admitted = Admitted::Refused(refusal),
            Err(_) => return visit.left(),
        }
    }
    let after = match admitted {
        Admitted::Refused(refusal) => {
            sight.refused(&view, since);
            visit.worker.tally.refused();
            trace::refused(&mut told, &refusal);
            if let Some(record) = record {
                record.refused(&refusal, sight.clock().now().since(since));
            }
            let spread = spread_of(client, visit.worker.timers.now_ms());
            visit.refuse(&refusal, spread, body, reply).await
        }
        Admitted::Ticket(mut ticket) if visit.worker.shared.buffers.has_too_many_stalled(client) => {
            ticket.done(Outcome::Failed);
            visit.too_many_unread(body, reply).await
        }
        Admitted::Ticket(mut ticket) => {
            let mut account = sight.admitted(&view, since);
            trace::goes(&mut told, &ticket, &mut account, (visit.request, visit.response));
            if let Some(record) = record {
                record.admitted(&ticket, account.wait());
            }
            ticket.seen_by(account);
            body.forwarded();
            let after = visit.forward(&mut ticket, picked, whole, body, reply).await;
            ticket.end();
            if let Some(record) = record {
                record.cost(ticket.toll());
            }
            after
        }
    };
    trace::over(told, visit.response);
    after
}

/// Memory that a request holds while it waits: its task and buffers, its head, and its body if that is here.
fn waiting_bytes(head: &RequestHead, is_whole: bool) -> u32 {
    const TASK_BYTES: u64 = 4096;
    let body = match head.length {
        Length::Fixed(bytes) if is_whole => bytes,
        _ => 0,
    };
    u32::try_from(TASK_BYTES + head.fields.bytes() as u64 + body).unwrap_or(u32::MAX)
}

/// Reads a small body before its request asks for a place at the backend, so that who withholds it keeps nobody waiting. Says whether all of it
/// is here.
async fn gather(request: &RequestHead, body: &mut impl ClientBody) -> Result<bool, Broken> {
    // Who asks whether to send is answered by the backend, which has to see the request for that.
    if request.expects_continue() { Ok(false) } else { body.gather(request.length).await }
}

impl Visit<'_> {
    async fn refuse(
        &mut self,
        refusal: &Refusal,
        random: u64,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> After {
        let keep = self.keep && self.is_body_drainable() && !self.request.expects_continue();
        let answer = OwnAnswer::refuse(refusal, self.request, self.response, &self.settings.pages, random);
        self.answer(&answer, keep, body, reply).await
    }

    /// Whether the body of a request that is not forwarded is small enough to be read all the same.
    fn is_body_drainable(&self) -> bool {
        match self.request.length {
            Length::Empty => true,
            Length::Fixed(length) => length <= self.settings.bounds.refused_body_bytes_max,
            Length::Chunked | Length::UntilClose => false,
        }
    }

    async fn fault(
        &mut self,
        status: u16,
        detail: &str,
        retry: Option<u64>,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> After {
        let keep = self.keep && self.is_body_drainable() && !self.request.expects_continue();
        let spread = spread_of(self.client, self.worker.timers.now_ms());
        let retry = retry.map(|secs| jittered_secs(Span::from_secs(secs), spread));
        let answer = OwnAnswer::fault_to(self.request, status, detail, retry, self.response, &self.settings.pages);
        self.answer(&answer, keep, body, reply).await
    }

    /// Gives an answer of our own. What is left of the request's body is read if the connection is to be kept.
    async fn answer(
        &mut self,
        answer: &OwnAnswer,
        keep: bool,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> After {
        let keep = keep && !self.worker.is_draining();
        self.response.fields.push(b"date", self.worker.date().as_bytes());
        let sent = async {
            reply.begin(self.response, keep)?;
            if !answer.body.is_empty() {
                reply.send(&answer.body, Rest::End).await?;
            }
            reply.end(None).await
        };
        if sent.await.is_err() {
            return After::Cut;
        }
        if keep && (body.has_ended() || discard(body, self.settings.bounds.refused_body_bytes_max).await) {
            After::Keep
        } else {
            After::Close
        }
    }

    /// Sends the request to the backend that was picked when it entered the queue, or to another if that one cannot be connected to. The permit is
    /// then still the picked backend's: the request was let through once and does not wait again.
    async fn forward(
        &mut self,
        ticket: &mut Ticket,
        picked: Option<u64>,
        is_complete: bool,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> After {
        let mut wanted = if self.may_be_sent_twice() { Wanted::Any } else { Wanted::Recent };
        let mut avoid = None;
        let mut failures = 0;
        let mut retried = false;
        let mut unsent = 0;
        loop {
            let place = match self.worker.shared.backends.load().choose(picked, avoid, is_complete) {
                Ok(place) => place,
                Err(AllDown(wait)) => {
                    // Before the answer: the client may take its time with what is left of its body.
                    ticket.done(Outcome::Failed);
                    return self.no_backend(wait, body, reply).await;
                }
            };
            // A connection from before the outage does not show whether others can be made.
            let wanted_now = if place.is_probe() { Wanted::New } else { wanted };
            let leg = match or_departure(self.leg(&place, wanted_now), body).await {
                Ok(Ok(leg)) => leg,
                Ok(Err(error)) if connect::is_shortage(&error) => {
                    // Ours, not the backend's: somebody idle has to go.
                    self.worker.timers.close_idle(listener::MAKE_ROOM);
                    self.log_failure(Failure::made(503, "the gate has no room for another connection").of(&error));
                    ticket.done(Outcome::Failed);
                    return self.fault(503, "the gate has no room for another connection", Some(1), body, reply).await;
                }
                Ok(Err(error)) => {
                    place.backend.connect_failed(&error.to_string());
                    failures += 1;
                    avoid = Some(place.backend.id);
                    // Nothing was sent, so any request may go elsewhere.
                    if failures < self.worker.shared.backends.load().len().min(3) {
                        continue;
                    }
                    let status = if error.kind() == io::ErrorKind::TimedOut { 504 } else { 502 };
                    let failure = Failure::made(status, "the backend cannot be reached");
                    self.log_failure(failure.of(&error).at(&place.backend.url));
                    ticket.done(Outcome::Failed);
                    return self.fault(status, "the backend cannot be reached", Some(1), body, reply).await;
                }
                Err(_) => return self.left(),
            };
            ticket.started();
            ticket.goes_to(&place.backend.queue);
            let was_used = leg.was_used();
            if !was_used {
                place.backend.connected();
            }
            match self.converse(leg, place, ticket, body, reply).await {
                Conversation::Over(after) => return after,
                Conversation::Unsent(_) if unsent < UNSENT_MAX => {
                    // The backend does not have any of it, so whatever it is may be sent.
                    ticket.unsent();
                    self.worker.tally.retried();
                    unsent += 1;
                    wanted = Wanted::New;
                }
                Conversation::Unsent(place) => {
                    ticket.unsent();
                    self.worker.tally.backend_failed();
                    ticket.done(Outcome::Failed);
                    return self.backend_broke(Broken::Gone, place, body, reply).await;
                }
                Conversation::BackendBroke { place, broken, begun, answered } => {
                    if broken == Broken::Gone && was_used && !begun && !retried && self.may_be_sent_twice() {
                        // The backend closed a connection that it had kept, at the moment we used it again.
                        self.worker.tally.retried();
                        retried = true;
                        wanted = Wanted::New;
                        continue;
                    }
                    self.worker.tally.backend_failed();
                    ticket.done(Outcome::Failed);
                    if answered {
                        self.log_failure(Failure::cut(broken).at(&place.backend.url));
                        return After::Cut;
                    }
                    return self.backend_broke(broken, place, body, reply).await;
                }
            }
        }
    }

    /// The client went while its request was on its way to the backend.
    fn left(&self) -> After {
        self.worker.tally.client_left();
        After::Left
    }

    /// Whether sending the request a second time does no harm.
    fn may_be_sent_twice(&self) -> bool {
        matches!(self.request.length, Length::Empty | Length::Fixed(0)) && self.request.is_idempotent()
    }

    /// Refuses a client that does not read the responses that it has.
    async fn too_many_unread(&mut self, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
        let detail = "too many responses wait for this client to read them";
        self.log_failure(Failure::made(503, detail));
        self.fault(503, detail, Some(1), body, reply).await
    }

    async fn no_backend(&mut self, wait: Duration, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
        let secs = wait.as_secs() + 1;
        self.log_failure(Failure::made(503, "no backend is up"));
        self.fault(503, "no backend is up", Some(secs), body, reply).await
    }

    async fn backend_broke(
        &mut self,
        broken: Broken,
        place: Place,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> After {
        let (status, detail, reason) = match broken {
            Broken::Gone => (502, CLOSED_WITHOUT_ANSWER, CLOSED_WITHOUT_ANSWER),
            Broken::Slow => (504, TOOK_TOO_LONG, TOOK_TOO_LONG),
            // Clients are not shown the inside of the backend.
            Broken::Malformed(what) => (502, "the backend's answer is not HTTP", what),
        };
        self.log_failure(Failure::made(status, reason).at(&place.backend.url));
        // The client may take its time to read, and is no request at the backend meanwhile.
        drop(place);
        self.fault(status, detail, Some(1), body, reply).await
    }

    /// Logs a failure of this request, alone or together with others of its kind.
    fn log_failure(&self, failure: Failure<'_>) {
        self.worker.failures.record(&failure, self.request, self.client, self.worker.shared.admission.now());
    }

    /// A way to the backend: a connection that was kept, or a new one.
    async fn leg(&self, place: &Place, wanted: Wanted) -> io::Result<Leg> {
        let (worker, backend) = (self.worker, place.backend.id);
        if place.backend.url.protocol == Protocol::Http2 {
            if wanted != Wanted::New
                && let Some(connection) = worker.h2_connections.pick(backend)
            {
                return Ok(Leg::H2 { connection, used: true });
            }
            let socket = connect::connect(&place.backend, worker).await?;
            let connection = h2::Connection::begin(socket, self.settings.timeouts.backend_idle).await?;
            worker.h2_connections.add(backend, connection.clone());
            return Ok(Leg::H2 { connection, used: false });
        }
        if let Some(connection) = worker.pool.take(backend, wanted, worker.timers.now_ms()) {
            return Ok(Leg::H1(connection));
        }
        let socket = connect::connect(&place.backend, worker).await?;
        Ok(Leg::H1(h1::Connection { socket, buffer: Buffer::default(), used: false }))
    }

    /// Sends the request to a backend and its answer to the client.
    async fn converse(
        &mut self,
        leg: Leg,
        place: Place,
        ticket: &mut Ticket,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> Conversation {
        match leg {
            Leg::H1(connection) => self.converse_h1(connection, place, ticket, body, reply).await,
            Leg::H2 { connection, used } => self.converse_h2(&connection, used, place, ticket, body, reply).await,
        }
    }

    async fn converse_h1(
        &mut self,
        mut connection: h1::Connection,
        place: Place,
        ticket: &mut Ticket,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> Conversation {
        let mut overflow = self.overflow(reply.task_bytes());
        let Visit { worker, settings, peer, request, response, decoder, out, value, keep, .. } = self;
        let timeouts = &settings.timeouts;
        let socket: &Socket = &connection.socket;
        let pace = Pace { idle_max: timeouts.backend_idle, bytes_per_sec_min: None };
        let mut answer = H1Answer::new(socket, &mut connection.buffer, decoder, pace, request.is_head());
        out.clear();
        forward::write_request(out, request, peer, &place.backend.authority, value);
        let mut sink = BodyWriter::new(socket, out, request.length, timeouts.backend_idle);
        let topic = Topic { worker, settings, backend: &place.backend, request, timer: &socket.timer, keep: *keep };
        let state = ConversationState { response, ticket, overflow: &mut overflow };
        let ended = converse(&topic, body, reply, &mut answer, &mut sink, state).await;
        let reusable = ended.is_complete() && answer.leaves_connection_reusable();
        self.judge(&place, &ended, ticket, connection.used);
        if matches!(ended, Ended::Upgraded) {
            // The head of the answer is sent before anything goes through the tunnel.
            if finish(reply, &mut overflow).await.is_err() {
                return Conversation::Over(After::Cut);
            }
            return Conversation::Over(After::Tunnel(Box::new(connection), place));
        }
        if reusable {
            connection.used = true;
            self.worker.keep(place.backend.id, connection);
        } else {
            drop(connection);
        }
        self.settle(ended, place, &mut overflow, body, reply).await
    }

    async fn converse_h2(
        &mut self,
        connection: &h2::Connection,
        used: bool,
        place: Place,
        ticket: &mut Ticket,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> Conversation {
        let mut overflow = self.overflow(reply.task_bytes());
        let Visit { worker, settings, peer, request, response, value, keep, .. } = self;
        let pace = Pace { idle_max: settings.timeouts.backend_idle, bytes_per_sec_min: None };
        let (backend, ends) = (&place.backend, matches!(request.length, Length::Empty | Length::Fixed(0)));
        let Some(head) = h2_head::write_request(request, peer, &backend.authority, backend.url.tls, value) else {
            let broken = Broken::Malformed("the request cannot be said in HTTP/2");
            ticket.done(Outcome::CutShort);
            let ended = Ended::ClientBroke { broken, answered: false, complete: false };
            return self.settle(ended, place, &mut overflow, body, reply).await;
        };
        if request.expects_continue() {
            // Few backends say 100 over HTTP/2, where a body costs nothing to hold back. The request was let in, so we say it.
            response.clear();
            response.status = 100;
            if let Err(broken) = reply.interim(response).await {
                ticket.done(Outcome::CutShort);
                let ended = Ended::ClientBroke { broken, answered: false, complete: false };
                return self.settle(ended, place, &mut overflow, body, reply).await;
            }
        }
        let opened = h2::open(connection, head, ends, request.is_head(), pace, worker.timers.timer()).await;
        let ended = match opened {
            Ok((mut answer, mut sink)) => {
                let timer = answer.timer();
                let topic = Topic { worker, settings, backend, request, timer: &timer, keep: *keep };
                let state = ConversationState { response, ticket, overflow: &mut overflow };
                let ended = converse(&topic, body, reply, &mut answer, &mut sink, state).await;
                if !ended.is_complete() {
                    sink.break_off().await;
                }
                ended
            }
            Err(Broken::Gone) => {
                connection.retire();
                return Conversation::Unsent(place);
            }
            Err(broken) => {
                ticket.unsent();
                Ended::BackendBroke { broken, begun: false, answered: false }
            }
        };
        if matches!(ended, Ended::BackendBroke { broken: Broken::Slow, begun: false, .. }) {
            // Perhaps nobody is at the other end any more. Others had better not wait for that as well.
            connection.retire();
        }
        // A stream that is reset says something about the request, not about the backend's health: it is there to reset it.
        self.judge(&place, &ended, ticket, used || !connection.has_ended());
        self.settle(ended, place, &mut overflow, body, reply).await
    }

    /// A buffer for the response, without memory as long as the client keeps up.
    fn overflow<'b>(&self, task_bytes: usize) -> Overflow<'b>
    where
        Self: 'b,
    {
        Overflow::new(&self.worker.shared.buffers, self.client, task_bytes)
    }

    /// Updates the health of the backend. `was_used`: on a connection that the backend may close at any time.
    fn judge(&self, place: &Place, ended: &Ended, ticket: &Ticket, was_used: bool) {
        if matches!(ended, Ended::BackendBroke { .. }) {
            let asked = Asked { route: ticket.route().route, client: self.client, on_new_connection: !was_used };
            self.worker.shared.backends.load().judge(&place.backend, ended, asked);
        }
    }

    /// What is left to do for the client.
    async fn settle(
        &mut self,
        ended: Ended,
        place: Place,
        overflow: &mut Overflow<'_>,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> Conversation {
        match ended {
            Ended::Answered { keep, .. } => {
                // The backend is done with this request, however long the client takes.
                drop(place);
                Conversation::Over(match or_departure(finish(reply, overflow), body).await {
                    Ok(Ok(())) if keep => After::Keep,
                    Ok(Ok(())) => After::Close,
                    Ok(Err(Broken::Gone)) | Err(_) => self.left(),
                    Ok(Err(_)) => After::Cut,
                })
            }
            Ended::ClientBroke { broken: Broken::Gone, .. } => {
                self.worker.tally.client_left();
                Conversation::Over(After::Left)
            }
            Ended::ClientBroke { broken, answered: false, .. } => {
                Conversation::Over(self.client_broke(broken, reply).await)
            }
            Ended::ClientBroke { .. } | Ended::Upgraded => Conversation::Over(After::Cut),
            Ended::BackendBroke { broken, begun, answered } => {
                Conversation::BackendBroke { place, broken, begun, answered }
            }
        }
    }

    /// Answers a client that did not send what it said it would.
    async fn client_broke(&mut self, broken: Broken, reply: &mut impl Reply) -> After {
        let (status, detail) = match broken {
            Broken::Malformed(detail) => (400, detail),
            _ => (408, "the request took too long to arrive"),
        };
        let answer = OwnAnswer::fault_to(self.request, status, detail, None, self.response, &self.settings.pages);
        let sent = async {
            reply.begin(self.response, false)?;
            reply.send(&answer.body, Rest::End).await?;
            reply.end(None).await
        };
        if sent.await.is_ok() { After::Close } else { After::Cut }
    }
}

/// A way to a backend for one request.
enum Leg {
    H1(h1::Connection),
    H2 {
        connection: h2::Connection,
        /// Whether it was there before.
        used: bool,
    },
}

impl Leg {
    /// Whether the other side may have closed it before it got the request.
    fn was_used(&self) -> bool {
        match self {
            Self::H1(connection) => connection.used,
            Self::H2 { used, .. } => *used,
        }
    }
}

const CLOSED_WITHOUT_ANSWER: &str = "the backend closed the connection without an answer";
const TOOK_TOO_LONG: &str = "the backend took too long";

/// How often a request that no backend has seen is tried on another connection.
const UNSENT_MAX: u32 = 2;

/// What came of talking to one backend.
enum Conversation {
    Over(After),
    /// The connection took no more requests: nothing was sent.
    Unsent(Place),
    BackendBroke {
        place: Place,
        broken: Broken,
        /// Whether the backend had begun to answer.
        begun: bool,
        /// Whether the client had been sent some of it.
        answered: bool,
    },
}

/// Reads a body and forgets it. Says whether it ended within the bound.
async fn discard(body: &mut impl Source, bytes_max: u64) -> bool {
    let mut left = bytes_max;
    loop {
        match body.next().await {
            Ok(Piece::Data(data, _)) if data.len() as u64 <= left => left -= data.len() as u64,
            Ok(Piece::End(_)) => return true,
            Ok(Piece::Data(..)) | Err(_) => return false,
        }
    }
}

/// Waits for something on behalf of a client, as long as the client is there.
async fn or_departure<T>(wait: impl Future<Output = T>, body: &mut impl ClientBody) -> Result<T, Broken> {
    let mut wait = pin!(wait);
    // Most waits are over before they begin, and then the client need not be looked at.
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await {
        return Ok(output);
    }
    let mut departure = pin!(body.departure());
    poll_fn(|cx| match wait.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => departure.as_mut().poll(cx).map(Err),
    })
    .await
}

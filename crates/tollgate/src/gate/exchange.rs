//! One request on its way through: identify, ask, forward, meter, answer.
//!
//! Both directions are two futures of one task: what the client still sends goes to the backend while the answer comes back. There
//! is no buffering of bodies and no channel between tasks. The client's side and the backend's side are each HTTP/1.1 or
//! HTTP/2, behind four small traits.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::hop_by_hop::strip_nominated;
use tollgate_wire::http1::{Length, RequestHead, ResponseHead};

use super::admission::{Admitted, Outcome, Ticket};
use super::backend::h1::{Connection, H1Answer};
use super::backend::pool::Wanted;
use super::backend::{AllDown, Place, connect};
use super::body::{Broken, Piece, PumpBroke, Rest, Sink, Source, pump};
use super::forward;
use super::h1_body::{BodyWriter, Pace};
use super::identify::{Peer, RequestView};
use super::refusal::{OwnAnswer, Refusal, spread_of};
use super::socket::Socket;
use super::timer::Way;
use super::worker::Worker;
use crate::settings::Gate as Settings;

/// What a client sends after the head.
pub(crate) trait ClientBody: Source {
    /// Resolves when the client goes. What it sends meanwhile is kept.
    async fn departure(&mut self) -> Broken;

    /// Whether all of the body has been read.
    fn has_ended(&self) -> bool;
}

/// What a client is sent.
pub(crate) trait Reply: Sink {
    /// Sends an interim answer (1xx).
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), Broken>;

    /// Begins the answer. `keep` says that the client may send another request afterwards.
    fn begin(&mut self, head: &ResponseHead, keep: bool) -> Result<(), Broken>;
}

/// What a backend sends.
pub(crate) trait Answer: Source {
    /// Reads the next head: of an interim answer, or of the final one.
    async fn head(&mut self, head: &mut ResponseHead) -> Result<(), Broken>;

    /// Whether anything has come: then the backend has seen the request.
    fn has_begun(&self) -> bool;

    /// Whether the final head has come.
    fn has_head(&self) -> bool;
}

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
    /// It is closed at once: the answer broke off, or nobody is there.
    Cut,
    /// It is no longer HTTP: both connections become one.
    Tunnel(Box<Connection>, Place),
}

/// What an exchange needs to know besides the two sides.
pub(crate) struct Visit<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) settings: &'a Settings,
    pub(crate) peer: &'a Peer,
    pub(crate) request: &'a mut RequestHead,
    pub(crate) response: &'a mut ResponseHead,
    pub(crate) decoder: &'a mut Decoder,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) value: &'a mut Vec<u8>,
    /// Whether the client's connection can be kept, as far as the request goes.
    pub(crate) keep: bool,
}

/// Why a conversation with a backend ended early.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Client(Broken),
    Backend(Broken),
}

/// Carries one request through.
pub(crate) async fn exchange(mut visit: Visit<'_>, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
    let client = visit.peer.client(visit.request, visit.settings);
    strip_nominated(&mut visit.request.fields);
    let view = RequestView { client, head: visit.request };
    let admission = &visit.worker.shared.admission;
    let admitted = match or_departure(admission.admit(&view), body).await {
        Ok(admitted) => admitted,
        Err(_) => return After::Cut,
    };
    match admitted {
        Admitted::Refused(refusal) => {
            visit.worker.tally.refused();
            visit.refuse(&refusal, spread_of(client, visit.worker.timers.now_ms()), body, reply).await
        }
        Admitted::Ticket(ticket) => visit.forward(ticket, body, reply).await,
    }
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
        let answer = OwnAnswer::refuse(refusal, self.request, self.response, random);
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
        let answer = OwnAnswer::fault(status, detail, retry, self.request.is_head(), self.response);
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

    async fn forward(&mut self, mut ticket: Ticket, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
        let mut wanted = if self.may_be_sent_twice() { Wanted::Any } else { Wanted::Recent };
        let mut avoid = None;
        let mut failures = 0;
        loop {
            let place = match self.worker.shared.backends.choose(avoid) {
                Ok(place) => place,
                Err(AllDown(wait)) => return self.no_backend(wait, body, reply).await,
            };
            let connection = match or_departure(self.connection(&place, wanted), body).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    place.backend.failed(&error.to_string());
                    failures += 1;
                    avoid = Some(place.backend.index);
                    // Nothing was sent, so any request may go elsewhere.
                    if failures < self.worker.shared.backends.len().min(3) {
                        continue;
                    }
                    let status = if error.kind() == std::io::ErrorKind::TimedOut { 504 } else { 502 };
                    return self.fault(status, "the backend cannot be reached", Some(1), body, reply).await;
                }
                Err(_) => return After::Cut,
            };
            ticket.started();
            let was_used = connection.used;
            match self.converse(connection, place, &mut ticket, body, reply).await {
                Conversation::Over(after) => return after,
                Conversation::BackendBroke { broken, begun, answered } => {
                    if broken == Broken::Gone && was_used && !begun && self.may_be_sent_twice() {
                        // The backend closed a connection that it had kept, at the moment we used it again.
                        wanted = Wanted::New;
                        continue;
                    }
                    ticket.done(Outcome::Failed);
                    if answered {
                        return After::Cut;
                    }
                    return self.backend_broke(broken, body, reply).await;
                }
            }
        }
    }

    /// Whether sending the request a second time does no harm.
    fn may_be_sent_twice(&self) -> bool {
        matches!(self.request.length, Length::Empty | Length::Fixed(0)) && self.request.is_idempotent()
    }

    async fn no_backend(&mut self, wait: Duration, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
        let secs = wait.as_secs() + 1;
        self.fault(503, "no backend is up", Some(secs), body, reply).await
    }

    async fn backend_broke(&mut self, broken: Broken, body: &mut impl ClientBody, reply: &mut impl Reply) -> After {
        let (status, detail) = match broken {
            Broken::Gone => (502, "the backend closed the connection without an answer"),
            Broken::Slow => (504, "the backend took too long"),
            Broken::Malformed(_) => (502, "the backend's answer is not HTTP"),
        };
        self.fault(status, detail, Some(1), body, reply).await
    }

    async fn connection(&self, place: &Place, wanted: Wanted) -> std::io::Result<Connection> {
        let worker = self.worker;
        if let Some(connection) = worker.pool.take(place.backend.index, wanted, worker.timers.now_ms()) {
            return Ok(connection);
        }
        let socket = connect::connect(&place.backend, worker).await?;
        Ok(Connection { socket, buffer: Default::default(), used: false })
    }

    /// Sends the request to a backend and its answer to the client.
    async fn converse(
        &mut self,
        mut connection: Connection,
        place: Place,
        ticket: &mut Ticket,
        body: &mut impl ClientBody,
        reply: &mut impl Reply,
    ) -> Conversation {
        let Visit { worker, settings, peer, request, response, decoder, out, value, keep } = self;
        let timeouts = &settings.timeouts;
        let Connection { socket, buffer, .. } = &mut connection;
        let socket: &Socket = socket;
        let pace = Pace { idle_max: timeouts.backend_idle, bytes_per_sec_min: None };
        let mut answer = H1Answer::new(socket, buffer, decoder, pace, request.is_head());
        out.clear();
        forward::write_request(out, request, peer, &place.backend.authority, value);
        let mut sink = BodyWriter::new(socket, out, request.length, timeouts.backend_idle);
        let wants_upgrade = request.upgrade().is_some();

        let uploaded = Cell::new(false);
        let body_ended = Cell::new(body.has_ended());
        let answered = Cell::new(false);
        socket.timer.clear(Way::In);
        let upload = async {
            match pump(body, &mut sink, &mut ()).await {
                Ok(()) => {
                    socket.timer.set(Way::In, timeouts.response_head);
                    uploaded.set(true);
                    body_ended.set(true);
                    Trouble::Client(body.departure().await)
                }
                Err(PumpBroke::Source(broken)) => Trouble::Client(broken),
                Err(PumpBroke::Sink(Broken::Slow)) => Trouble::Backend(Broken::Slow),
                // The backend takes no more, perhaps because it has answered already: that is for the other direction to see.
                Err(PumpBroke::Sink(_)) => std::future::pending().await,
            }
        };
        let download = async {
            loop {
                answer.head(response).await.map_err(Trouble::Backend)?;
                if !response.is_interim() {
                    break;
                }
                reply.interim(response).await.map_err(Trouble::Client)?;
            }
            if response.status == 101 && !wants_upgrade {
                return Err(Trouble::Backend(Broken::Malformed("an upgrade that nobody asked for")));
            }
            let keep = *keep && body_ended.get() && !worker.is_draining();
            reply.begin(response, keep).map_err(Trouble::Client)?;
            answered.set(true);
            let pumped = pump(&mut answer, reply, ticket).await;
            pumped.map(|()| keep).map_err(|broke| match broke {
                PumpBroke::Source(broken) => Trouble::Backend(broken),
                PumpBroke::Sink(broken) => Trouble::Client(broken),
            })
        };
        let ended = race(download, upload).await;

        match ended {
            Ok(_) if response.status == 101 => {
                place.backend.succeeded();
                answer.leaves_connection_reusable();
                Conversation::Over(After::Tunnel(Box::new(connection), place))
            }
            Ok(keep) => {
                place.backend.succeeded();
                let reusable = answer.leaves_connection_reusable() && uploaded.get();
                if reusable {
                    connection.used = true;
                    worker.keep(place.backend.index, connection);
                }
                Conversation::Over(if keep { After::Keep } else { After::Close })
            }
            Err(Trouble::Client(broken)) => {
                if uploaded.get() {
                    // The backend works on for a client that has gone. The toll runs until it has finished.
                    if hear_out(&mut answer, response, settings, ticket).await && answer.leaves_connection_reusable() {
                        connection.used = true;
                        worker.keep(place.backend.index, connection);
                    }
                } else {
                    // The request never became whole, and now the backend learns that it never will.
                    drop(connection);
                    ticket.done(Outcome::Abandoned);
                    if !answered.get() && broken != Broken::Gone {
                        return Conversation::Over(self.client_broke(broken, reply).await);
                    }
                }
                Conversation::Over(After::Cut)
            }
            Err(Trouble::Backend(broken)) => {
                let begun = answer.has_begun();
                // A connection that was kept may be closed at any time; that is no sign of ill health.
                if !(connection.used && broken == Broken::Gone && !begun) {
                    place.backend.failed(broken.as_str());
                }
                Conversation::BackendBroke { broken, begun, answered: answered.get() }
            }
        }
    }

    /// Answers a client that did not send what it said it would.
    async fn client_broke(&mut self, broken: Broken, reply: &mut impl Reply) -> After {
        let (status, detail) = match broken {
            Broken::Malformed(detail) => (400, detail),
            _ => (408, "the request took too long to arrive"),
        };
        let answer = OwnAnswer::fault(status, detail, None, self.request.is_head(), self.response);
        let sent = async {
            reply.begin(self.response, false)?;
            reply.send(&answer.body, Rest::End).await?;
            reply.end(None).await
        };
        if sent.await.is_ok() { After::Close } else { After::Cut }
    }
}

enum Conversation {
    Over(After),
    BackendBroke {
        broken: Broken,
        /// Whether the backend had begun to answer.
        begun: bool,
        /// Whether the client had been sent some of it.
        answered: bool,
    },
}

/// Reads an answer that nobody waits for any more, within bounds, so that the backend finishes and its cost is known. Says whether
/// it was read to its end.
///
/// Cutting the connection at once would not stop the backend's work, only hide when it ends. An answer that goes on and on is cut:
/// who writes it notices.
async fn hear_out(
    answer: &mut impl Answer,
    response: &mut ResponseHead,
    settings: &Settings,
    ticket: &mut Ticket,
) -> bool {
    let heard = async {
        while !answer.has_head() {
            answer.head(response).await?;
        }
        let mut left = settings.bounds.unheard_bytes_max;
        loop {
            match answer.next().await? {
                Piece::Data(data, _) if data.len() as u64 <= left => left -= data.len() as u64,
                Piece::Data(..) => return Ok(false),
                Piece::End(_) => return Ok(true),
            }
        }
    };
    let heard: Result<Result<bool, Broken>, _> =
        tokio::time::timeout(settings.timeouts.response_head.max(settings.timeouts.unheard), heard).await;
    let outcome = match heard {
        Ok(Ok(true)) => Outcome::Answered,
        Ok(Ok(false)) | Err(_) => Outcome::Abandoned,
        Ok(Err(_)) => Outcome::Failed,
    };
    ticket.done(outcome);
    outcome == Outcome::Answered
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

/// The first of two futures to end.
async fn race<T>(
    main: impl Future<Output = Result<T, Trouble>>,
    other: impl Future<Output = Trouble>,
) -> Result<T, Trouble> {
    let mut main = pin!(main);
    let mut other = pin!(other);
    // The request goes out before its answer is looked for. Afterwards an answer that is there counts before a client that has gone.
    if let Poll::Ready(trouble) = poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx))).await {
        return Err(trouble);
    }
    poll_fn(|cx| match main.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(ended),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}

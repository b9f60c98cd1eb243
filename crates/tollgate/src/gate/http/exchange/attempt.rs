//! One attempt to have a request served by one backend: opens a connection, writes the head, streams both bodies, and
//! updates the health of the backend. `Exchange::forward` makes further attempts where that is safe.

use std::io;

use tollgate_wire::http1::Length;

use super::stream::Stream;
use super::{End, Exchange, Inbound};
use crate::gate::decide::admission::Outcome;
use crate::gate::http::backend::BackendSlot;
use crate::gate::http::backend::h1::{H1Answer, H1Connection};
use crate::gate::http::backend::h2::{self, H2Connection};
use crate::gate::http::backend::health::FailedRequest;
use crate::gate::http::backend::pool::Wanted;
use crate::gate::http::body::PeerError;
use crate::gate::http::h1_body::BodyWriter;
use crate::gate::http::halves::{ClientBody, Forward as _, Reply};
use crate::gate::http::scratch::BackendScratch;
use crate::gate::http::worker::Worker;
use crate::gate::http::{forward, h2_head};
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::pace::Pace;
use crate::settings::{BackendProtocol, Gate as Settings};

/// How an attempt ended.
pub(super) enum AttemptEnd {
    /// The exchange ends with this attempt: the backend has responded, or the client failed.
    Last(End),
    /// The backend has switched to another protocol.
    Upgraded(Box<H1Connection>),
    /// The backend failed.
    BackendFailed {
        error: PeerError,
        /// Whether the backend has sent any byte of a response.
        has_begun: bool,
        /// Whether the client has been sent a part of the response.
        is_cut: bool,
    },
    /// The connection took no more requests. The backend has received nothing, so another attempt is safe.
    Unsent,
}

impl AttemptEnd {
    /// Whether the backend has received the whole request and the gate the whole response.
    fn is_complete(&self) -> bool {
        let Self::Last(end) = self else { return false };
        matches!(
            end,
            End::Answered { is_complete: true, .. } | End::ClientFailed { outcome: Some(Outcome::Answered), .. }
        )
    }
}

/// A connection to a backend, for one request.
pub(super) enum Upstream {
    H1(H1Connection),
    H2 {
        connection: H2Connection,
        /// Whether other requests use it, or have used it.
        was_used: bool,
    },
}

impl Upstream {
    /// An idle connection of the worker, or a new one.
    pub(super) async fn open(
        worker: &Worker,
        settings: &Settings,
        slot: &BackendSlot,
        wanted: Wanted,
    ) -> io::Result<Self> {
        let backend = slot.backend.id;
        if slot.backend.url.protocol == BackendProtocol::Http2 {
            if wanted != Wanted::New
                && let Some(connection) = worker.h2_connections.pick(backend)
            {
                return Ok(Self::H2 { connection, was_used: true });
            }
            let socket = worker.connect(&slot.backend).await?;
            let connection = H2Connection::begin(socket, settings.timeouts.backend_idle).await?;
            worker.h2_connections.add(backend, connection.clone());
            return Ok(Self::H2 { connection, was_used: false });
        }
        if let Some(connection) = worker.pool.take(backend, wanted, worker.timers.now_ms()) {
            return Ok(Self::H1(connection));
        }
        let socket = worker.connect(&slot.backend).await?;
        Ok(Self::H1(H1Connection { socket, buffer: ReadBuffer::default(), used: false }))
    }

    /// Whether it has been used before, so that the backend may be closing it.
    pub(super) fn was_used(&self) -> bool {
        match self {
            Self::H1(connection) => connection.used,
            Self::H2 { was_used, .. } => *was_used,
        }
    }
}

impl<B: ClientBody, R: Reply> Exchange<'_, B, R> {
    /// Sends the request on a connection, and the response to the client. Updates the health of the backend.
    pub(super) async fn attempt(&mut self, upstream: Upstream, slot: &BackendSlot) -> AttemptEnd {
        match upstream {
            Upstream::H1(connection) => self.attempt_h1(connection, slot).await,
            Upstream::H2 { connection, was_used } => self.attempt_h2(&connection, was_used, slot).await,
        }
    }

    async fn attempt_h1(&mut self, mut connection: H1Connection, slot: &BackendSlot) -> AttemptEnd {
        let Self { inbound, scratch: BackendScratch { decoder, out, value }, ticket, overflow, .. } = self;
        let (Some(ticket), Some(overflow)) = (ticket, overflow) else { return AttemptEnd::Unsent };
        let (socket, request, backend) = (&connection.socket, &*inbound.request, &*slot.backend);
        let pace = Pace::without_rate(inbound.settings.timeouts.backend_idle);
        let mut answer = H1Answer::new(socket, &mut connection.buffer, decoder, pace, request.is_head());
        out.clear();
        forward::write_request(out, request, inbound.peer, &backend.authority, value);
        let mut sink = BodyWriter::new(socket, out, request.length, pace);
        let (timer, body, reply) = (&socket.timer, &mut *self.body, &mut *self.reply);
        let stream = Stream { inbound, backend, timer, body, reply, ticket, overflow };
        let end = stream.run(&mut answer, &mut sink).await;
        let is_reusable = end.is_complete() && answer.leaves_connection_reusable();
        self.judge(slot, &end, connection.used);
        if matches!(end, AttemptEnd::Last(End::Answered { .. })) && self.inbound.response.status == 101 {
            return AttemptEnd::Upgraded(Box::new(connection));
        }
        if is_reusable {
            connection.used = true;
            self.inbound.worker.keep(slot.backend.id, connection);
        }
        end
    }

    async fn attempt_h2(&mut self, connection: &H2Connection, was_used: bool, slot: &BackendSlot) -> AttemptEnd {
        let Self { inbound, scratch, ticket, overflow, .. } = self;
        let (body, reply) = (&mut *self.body, &mut *self.reply);
        let (Some(ticket), Some(overflow)) = (ticket, overflow) else { return AttemptEnd::Unsent };
        let Inbound { worker, settings, peer, request, response, .. } = inbound;
        let pace = Pace::without_rate(settings.timeouts.backend_idle);
        let (backend, ends) = (&*slot.backend, matches!(request.length, Length::Empty | Length::Fixed(0)));
        let (authority, secure, to_head) = (&backend.authority, backend.url.tls, request.is_head());
        let cut_short =
            |error| AttemptEnd::Last(End::ClientFailed { error, has_begun: false, outcome: Some(Outcome::CutShort) });
        let Some(head) = h2_head::write_request(request, peer, authority, secure, &mut scratch.value) else {
            return cut_short(PeerError::Malformed("the request cannot be expressed in HTTP/2"));
        };
        if request.expects_continue() {
            // Few backends send a 100 over HTTP/2, where flow control can hold a body back. The request was admitted,
            // so the gate sends the 100.
            response.clear();
            response.status = 100;
            if let Err(error) = reply.interim(response).await {
                return cut_short(error);
            }
        }
        let end = match h2::open(connection, head, ends, to_head, pace, worker.timers.timer()).await {
            Ok((mut answer, mut sink)) => {
                let timer = answer.timer.clone();
                let stream = Stream { inbound, backend, timer: &timer, body, reply, ticket, overflow };
                let end = stream.run(&mut answer, &mut sink).await;
                if !end.is_complete() {
                    sink.break_off().await;
                }
                end
            }
            Err(PeerError::Gone) => {
                connection.retire();
                return AttemptEnd::Unsent;
            }
            Err(error) => {
                ticket.unsent();
                AttemptEnd::BackendFailed { error, has_begun: false, is_cut: false }
            }
        };
        if matches!(end, AttemptEnd::BackendFailed { error: PeerError::Slow, has_begun: false, .. }) {
            // The connection may be dead, so it gets no further requests.
            connection.retire();
        }
        // A reset stream shows nothing about the health of the backend, but the end of a new connection does.
        self.judge(slot, &end, was_used || !connection.has_ended());
        end
    }

    /// Counts a failure to respond for the health of the backend. If nothing came on a connection that `was_used`, that
    /// is no failure, because the backend may close such a connection at any time. A response that breaks off is none
    /// either, because it shows that the backend responds.
    fn judge(&self, slot: &BackendSlot, end: &AttemptEnd, was_used: bool) {
        let AttemptEnd::BackendFailed { error, has_begun, is_cut: false } = end else { return };
        if *error == PeerError::Gone && !has_begun && was_used {
            return;
        }
        let Some(ticket) = &self.ticket else { return };
        let asked = FailedRequest { route: ticket.route.route, client: self.client };
        let backends = self.inbound.worker.shared.backends.load();
        self.backends(&backends).answer_failed(&slot.backend, error.as_str(), asked);
    }
}

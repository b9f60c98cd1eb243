//! A client's HTTP/2 connection: many requests at once, each in a task of its own.
//!
//! HTTP/2 lets a client open and reset streams and send empty frames at little cost. The `h2` crate limits what it can
//! see; the rest is limited here. A stream that was reset still has its request at the backend, so it counts until the
//! backend has finished, and a client that resets more streams than it lets finish is disconnected. The memory of
//! requests that are not forwarded yet is limited by the queue while they wait in it, and otherwise by a
//! [`ConnectionBudget`]: requests that do not fit are parked, which means that they wait without a task.

mod parked;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};
use tollgate_core::time::Span;
use tollgate_wire::http1::{Fields, Length, ResponseHead};

use super::body::{PeerError, Piece, Rest, Sink, Source};
use super::download::{Grace, Spill, make_room, without_room};
use super::exchange::{After, Exchange, Inbound};
use super::h1::linger;
use super::h2_body::{self, StreamReader};
use super::h2_budget::{ConnectionBudget, MemoryCharge, RequestSize};
use super::h2_connect;
use super::h2_head;
use super::h2_io::H2Io;
use super::h2_refusal;
use super::h2_unsent::UnsentBytes;
use super::halves::{ClientBody, GATHERED_MAX, Reply, Sent, UNSURE_MAX};
use super::scratch::Scratch;
use super::spool::Overflow;
use super::tunnel;
use super::worker::Worker;
use crate::gate::decide::flow::PAUSE_MAX;
use crate::gate::decide::identify::ConnectionPeer;
use crate::gate::net::buffer::{LARGE, ReadBuffer};
use crate::gate::net::caps::CountedConnection;
use crate::gate::net::pace::{Pace, PaceMeter};
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::{Timer, Way};
use crate::gate::observe::counters::WorkerCounter;
use crate::settings::WAITING_BYTES_MAX;
use parked::{ParkedRequest, prune_parked, start_parked};

/// The first bytes of every HTTP/2 client.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that a client may send on one stream, and on all streams together, before the gate has read them.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Unsent bytes of one response that the `h2` crate keeps.
const SEND_BUFFER: usize = 64 * 1024;
/// Connections of one address that may have as many streams as the settings permit. The `h2` crate needs about 2 kB per
/// stream, so a full connection costs ten times as much as an idle one.
const CONNECTIONS_WITH_ALL_STREAMS: usize = 64;
/// Concurrent streams on every further connection of the address, and on all connections while more than half of the
/// permitted ones are open.
const STREAMS_WHEN_CROWDED: u32 = 32;
/// Streams that a client may reset beyond those that it lets finish.
const RESETS_MAX: u32 = 200;
/// The last piece of a response up to this size is passed to the `h2` crate at once, even if the client's window is
/// closed: then the task of the request, which takes more memory, ends.
const LAST_PIECE_MAX: usize = 4 * 1024;
/// The memory of a request's task and stream while it waits in the queue, in bytes. Measured: see `docs/memory.md`.
const WAITING_TASK_BYTES: usize = 10 * 1024;
const _: () = assert!((WAITING_TASK_BYTES + LARGE + GATHERED_MAX) as u64 <= WAITING_BYTES_MAX);
/// The memory of a request's task while its response waits for the client, in bytes.
const TASK_BYTES: usize = 20 * 1024;
/// The time that a client has to close the connection after a GOAWAY.
const GOODBYE: Duration = Duration::from_secs(5);

/// The state that the streams of one connection share.
struct H2Session {
    peer: ConnectionPeer,
    worker: Rc<Worker>,
    budget: Rc<ConnectionBudget>,
    /// Requests that are not finished, including parked ones and those of streams that were reset.
    under_way: Cell<u32>,
    /// Streams that were reset, minus those that finished.
    resets: Cell<u32>,
    /// Bytes of responses that the windows of the client have permitted to send, on all streams.
    taken: Cell<u64>,
    /// Bytes that were sent on the connection.
    written: Rc<Cell<u64>>,
    /// Limits the response bytes that the `h2` crate keeps.
    unsent: Arc<UnsentBytes>,
    /// Whether the client reads nothing from the connection at the moment.
    is_blocked: Rc<Cell<bool>>,
}

/// The state of a connection that is to be closed.
#[derive(Default)]
struct Leaving {
    /// Whether a GOAWAY was sent.
    asked: bool,
    /// Whether the deadline for closing is set, because no stream is left.
    timed: bool,
}

/// The streams of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamsState {
    /// There are none.
    Idle,
    /// All requests have been served, and the client has not taken the last pieces of some responses.
    Unread,
    /// Requests are served or parked.
    Serving,
}

/// A request, and the handle for its response.
type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// Serves requests until the connection ends. `read_ahead` contains the bytes that were read to detect HTTP/2.
pub(crate) async fn serve(
    socket: Socket,
    read_ahead: ReadBuffer,
    peer: ConnectionPeer,
    counted: CountedConnection,
    worker: Rc<Worker>,
) {
    let (socket, settings) = (Rc::new(socket), worker.settings());
    let is_crowded = worker.shared.caps.is_crowded() || counted.connections_of_address() > CONNECTIONS_WITH_ALL_STREAMS;
    let streams_max = settings.bounds.streams_max.min(if is_crowded { STREAMS_WHEN_CROWDED } else { u32::MAX });
    socket.timer.set(Way::In, settings.timeouts.head);
    let io = H2Io::new(socket.clone(), read_ahead, settings.timeouts.write);
    let unsent = UnsentBytes::new(worker.shared.buffers.clone(), counted.address);
    let (budget, written, is_blocked) =
        (ConnectionBudget::new(counted, io.received.clone()), io.written.clone(), io.is_blocked.clone());
    let handshake = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(streams_max)
        .max_header_list_size(u32::try_from(settings.bounds.head_bytes_max).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        // The streams reset by the gate that the crate remembers, and two limits above which it disconnects the client:
        // of streams that the client resets before they are accepted, and of streams with errors.
        .max_concurrent_reset_streams(64)
        .max_pending_accept_reset_streams(32)
        .max_local_error_reset_streams(Some(64))
        .enable_connect_protocol()
        .handshake(io);
    socket.timer.set_idle(true);
    let Ok(mut connection) = handshake.await else { return };
    socket.timer.set_idle(false);
    socket.timer.clear(Way::In);
    let (under_way, resets, taken) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let session = Rc::new(H2Session { peer, worker, budget, under_way, resets, taken, written, unsent, is_blocked });
    let ended = serve_streams(&mut connection, &socket, &session).await;
    drop(connection);
    if ended.is_err() {
        // A client that is still sending would lose the reason for the close.
        linger(&socket, &mut ReadBuffer::default()).await;
    }
}

/// Accepts requests and serves them until the connection ends.
async fn serve_streams(
    connection: &mut Connection<H2Io, Bytes>,
    socket: &Socket,
    session: &Rc<H2Session>,
) -> Result<(), h2::Error> {
    let idle = session.worker.timers.timer();
    let mut leaving = Leaving::default();
    let mut parked = VecDeque::new();
    while let Some(event) = next_event(connection, socket, session, &idle, &mut leaving, &mut parked).await {
        if let Some((request, mut respond)) = event? {
            idle.asked();
            session.worker.counters.count(WorkerCounter::Request);
            let mut charge = session.charge(&request);
            if charge.is_none() {
                // Requests that came in the same burst may be about to enter the queue.
                tokio::task::yield_now().await;
                start_parked(&mut parked, session);
                charge = session.charge(&request);
            }
            match charge {
                Some(charge) => {
                    session.under_way.set(session.under_way.get() + 1);
                    parked.push_back(ParkedRequest { request, respond, charge, since_ms: idle.now_ms() });
                }
                None => session.refuse(&request, &mut respond, Span::ZERO),
            }
        }
        start_parked(&mut parked, session);
    }
    Ok(())
}

impl H2Session {
    /// Refuses a request of which nothing has been processed, so that its client may send it again. `wait`: the time
    /// for which it was parked.
    fn refuse(&self, request: &Request<RecvStream>, respond: &mut SendResponse<Bytes>, wait: Span) {
        respond.send_reset(Reason::REFUSED_STREAM);
        h2_refusal::record(&self.worker, &self.peer, request, wait);
    }

    /// Charges a request as a parked one. None if there is no room even for that.
    fn charge(&self, request: &Request<RecvStream>) -> Option<MemoryCharge> {
        if self.under_way.get() >= self.worker.settings().bounds.streams_max.saturating_mul(2) {
            return None;
        }
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        self.budget.park(RequestSize::of(request.headers(), target, !request.body().is_end_stream()))
    }
}

/// The next request. `Some(Ok(None))`: the task was woken while requests are parked, so one of them may fit now. Sends
/// a GOAWAY to a client that is idle for too long or misbehaves, to make room, or when the gate stops.
///
/// The deadlines of `idle` are those of the idle time (`In`) and of the oldest parked request (`Out`).
async fn next_event(
    connection: &mut Connection<H2Io, Bytes>,
    socket: &Socket,
    session: &H2Session,
    idle: &Timer,
    leaving: &mut Leaving,
    parked: &mut VecDeque<ParkedRequest>,
) -> Option<Result<Option<Accepted>, h2::Error>> {
    let (mut state_before, mut has_waited, mut written) = (StreamsState::Serving, false, 0);
    idle.set_idle(false);
    idle.clear(Way::In);
    let accepted =
        |polled: Poll<Option<Result<Accepted, h2::Error>>>| polled.map(|some| some.map(|accepted| accepted.map(Some)));
    poll_fn(|cx| {
        let polled = connection.poll_accept(cx);
        session.budget.trim();
        if polled.is_ready() {
            return accepted(polled);
        }
        if !parked.is_empty() {
            prune_parked(parked, session, idle, cx);
            *session.budget.waker.borrow_mut() = Some(cx.waker().clone());
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(Some(Ok(None)));
            }
        }
        if session.resets.get() > RESETS_MAX {
            session.worker.counters.count(WorkerCounter::Calmed);
            session.resets.set(0);
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            return accepted(connection.poll_accept(cx));
        }
        let is_idle = !connection.has_streams();
        let state = match (is_idle, session.under_way.get()) {
            (true, _) => StreamsState::Idle,
            (false, 0) => StreamsState::Unread,
            (false, _) => StreamsState::Serving,
        };
        let has_moved = state == StreamsState::Unread && written != session.written.get();
        if state != state_before || has_moved {
            (state_before, written) = (state, session.written.get());
            idle.set_idle(is_idle);
            let timeouts = &session.worker.settings().timeouts;
            match state {
                StreamsState::Idle => idle.set(Way::In, timeouts.keep_alive),
                StreamsState::Unread => idle.set(Way::In, timeouts.write),
                StreamsState::Serving => idle.clear(Way::In),
            }
        }
        let is_late = idle.is_over(Way::In, cx);
        if is_late && state == StreamsState::Unread {
            connection.abrupt_shutdown(Reason::CANCEL);
            return accepted(connection.poll_accept(cx));
        }
        let must_leave = is_late || idle.is_closing() || session.worker.is_draining();
        if must_leave && !leaving.asked {
            leaving.asked = true;
            connection.graceful_shutdown();
            let polled = accepted(connection.poll_accept(cx));
            if polled.is_ready() {
                return polled;
            }
        }
        // The deadline is set once, whatever the client still sends.
        let has_time = leaving.asked && is_idle;
        if has_time != std::mem::replace(&mut leaving.timed, has_time) {
            if has_time { socket.timer.set(Way::In, GOODBYE) } else { socket.timer.clear(Way::In) }
        }
        Poll::Pending
    })
    .await
}

/// Serves one request on its stream.
async fn serve_one(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    charge: MemoryCharge,
    session: &H2Session,
) {
    let H2Session { worker, peer, .. } = session;
    let settings = &*worker.settings();
    let mut scratch = worker.scratch();
    let timer = worker.timers.timer();
    let Scratch { request: head, response, backend, .. } = &mut *scratch;
    let read = h2_head::read_request(&request, head, settings.bounds.fields_max);
    let websocket = h2_connect::asks_for_websocket(&request);
    let paced = |idle_max| Pace { idle_max, bytes_per_sec_min: Some(settings.bounds.body_bytes_per_sec_min) };
    let pace = if websocket {
        Pace::without_rate(settings.timeouts.upgraded_idle)
    } else {
        paced(settings.timeouts.body_idle)
    };
    let half = RefCell::new(ResponseHalf::Responding(respond));
    let reader = StreamReader::new(request.into_body(), pace);
    let mut body = StreamBody { reader, half: &half, timer: &timer, charge, session };
    if websocket {
        body.reader.ended = true;
    }
    let meter = PaceMeter::new(paced(settings.timeouts.write));
    let mut reply = StreamReply {
        half: &half,
        websocket,
        ended: false,
        has_begun: false,
        body_bytes: 0,
        timer: &timer,
        meter,
        session,
        wait: None,
        trailers: None,
        ends_after_drain: false,
        grace: Grace::new(),
        has_continued: false,
    };
    let inbound = Inbound { worker, settings, peer, request: head, response, keep: true };
    let mut exchange = Exchange::new(inbound, backend, &mut body, &mut reply);
    let after = match read {
        Ok(()) => exchange.run().await,
        Err(fault) => exchange.reject(fault).await,
    };
    drop(exchange);
    worker.keep_scratch(scratch);
    match after {
        After::Keep | After::Close => session.resets.set(session.resets.get().saturating_sub(1)),
        After::Cut => half.borrow_mut().reset(Reason::INTERNAL_ERROR),
        After::Unanswered => half.borrow_mut().reset(Reason::REFUSED_STREAM),
        After::Left => session.resets.set(session.resets.get() + 1),
        After::Tunnel(backend, slot) => {
            let _counted = worker.count_tunnel();
            let idle_max = settings.timeouts.upgraded_idle;
            body.reader.ended = body.reader.stream.is_end_stream();
            reply.open(idle_max);
            tunnel::run_stream(&mut body, &mut reply, *backend, slot, idle_max).await;
            if !reply.ended {
                half.borrow_mut().reset(Reason::INTERNAL_ERROR);
            }
        }
    }
}

/// The gate's half of a stream: before and after the head of the final response is sent.
enum ResponseHalf {
    Responding(SendResponse<Bytes>),
    Sending(SendStream<Bytes>),
}

impl ResponseHalf {
    /// The stream of the body, once the head was sent.
    fn stream(&mut self) -> Result<&mut SendStream<Bytes>, PeerError> {
        match self {
            Self::Responding(_) => Err(PeerError::Gone),
            Self::Sending(stream) => Ok(stream),
        }
    }

    fn reset(&mut self, reason: Reason) {
        match self {
            Self::Responding(respond) => respond.send_reset(reason),
            Self::Sending(stream) => stream.send_reset(reason),
        }
    }
}

/// The client's half of a stream.
struct StreamBody<'a> {
    reader: StreamReader,
    half: &'a RefCell<ResponseHalf>,
    timer: &'a Timer,
    /// The memory that the request is charged for.
    charge: MemoryCharge,
    session: &'a H2Session,
}

impl Source for StreamBody<'_> {
    async fn next(&mut self) -> Result<Piece<'_>, PeerError> {
        self.reader.next(self.timer).await
    }
}

impl ClientBody for StreamBody<'_> {
    async fn gather(&mut self, length: Length, is_awaited: bool) -> Result<bool, PeerError> {
        if let Length::Fixed(length) = length {
            self.reader.length = Some(length);
        }
        match length {
            Length::Fixed(length) if length > GATHERED_MAX as u64 => Ok(false),
            Length::Fixed(_) => self.reader.gather(self.timer, GATHERED_MAX, None).await,
            _ if is_awaited => self.reader.gather(self.timer, GATHERED_MAX, None).await,
            _ => {
                let gathered = self.reader.gather(self.timer, GATHERED_MAX, Some(PAUSE_MAX));
                let gathered = tokio::time::timeout(UNSURE_MAX, gathered).await;
                self.timer.clear(Way::In);
                gathered.unwrap_or(Ok(false))
            }
        }
    }

    fn gathered(&self) -> Vec<u8> {
        self.reader.ahead.clone()
    }

    async fn departure(&mut self) -> PeerError {
        poll_fn(|cx| {
            let polled = match &mut *self.half.borrow_mut() {
                ResponseHalf::Responding(respond) => respond.poll_reset(cx),
                ResponseHalf::Sending(stream) => stream.poll_reset(cx),
            };
            polled.map(|_| PeerError::Gone)
        })
        .await
    }

    fn has_ended(&self) -> bool {
        self.reader.ended
    }

    fn buffered_bytes(&self) -> usize {
        self.reader.ahead.len()
    }

    fn task_bytes(&self) -> usize {
        WAITING_TASK_BYTES
    }

    fn enters_queue(&mut self) {
        self.charge.enter_queue();
    }

    fn leaves_queue(&mut self) {
        self.charge.leave_queue();
    }

    fn is_unread(&self) -> bool {
        self.session.is_blocked.get() && self.charge.lacks_room_for_response()
    }

    fn forwarded(&mut self) {
        self.charge.forward();
    }
}

/// The response on a stream.
struct StreamReply<'a> {
    half: &'a RefCell<ResponseHalf>,
    /// Whether the stream is to become a tunnel.
    websocket: bool,
    /// Whether no end is to be sent: it was sent with the head, or comes through a tunnel later.
    ended: bool,
    /// Whether the head of the final response was sent.
    has_begun: bool,
    /// Bytes of the body that were sent or buffered.
    body_bytes: u64,
    timer: &'a Timer,
    meter: PaceMeter,
    session: &'a H2Session,
    /// The start of the wait for the client while buffered bytes are sent, in milliseconds, and `H2Session::taken` at
    /// that time.
    wait: Option<(u64, u64)>,
    /// The trailers after the buffered bytes.
    trailers: Option<HeaderMap>,
    /// Whether the end follows the buffered bytes.
    ends_after_drain: bool,
    /// The time for which the gate waits for the client before it buffers the response.
    grace: Grace,
    /// Whether a 100 has been sent.
    has_continued: bool,
}

impl StreamReply<'_> {
    /// Starts a wait for the client, unless there is one.
    fn begin_wait(&mut self) {
        if self.wait.is_none() {
            self.wait = Some((self.timer.now_ms(), self.session.taken.get()));
            self.timer.set(Way::Out, self.meter.patience());
        }
    }

    /// Ends the wait for the client.
    fn end_wait(&mut self) {
        if let Some((since_ms, taken)) = self.wait.take() {
            self.meter.moved(self.session.taken.get() - taken, self.timer.now_ms() - since_ms);
        }
        self.timer.clear(Way::Out);
    }

    /// Passes the last piece to the `h2` crate, which sends it when the client's window permits it. Returns whether
    /// there was room for it.
    fn hand_over(&mut self, data: &[u8]) -> Result<bool, PeerError> {
        let unsent = &self.session.unsent;
        if data.len() > LAST_PIECE_MAX || !unsent.has_room_behind_window(data.len()) {
            return Ok(data.is_empty());
        }
        let mut half = self.half.borrow_mut();
        let stream = half.stream()?;
        if !data.is_empty() {
            stream.send_data(unsent.hand_over(data), false)?;
        }
        Ok(true)
    }

    /// Sends as much as the client's window permits.
    fn poll_some(&mut self, left: &mut &[u8], cx: &mut Context<'_>) -> Poll<Result<(), PeerError>> {
        let length = left.len();
        let polled = h2_body::poll_send(self.half.borrow_mut().stream()?, left, Some(&self.session.unsent), cx);
        self.session.taken.set(self.session.taken.get() + (length - left.len()) as u64);
        polled
    }

    /// Prepares for a tunnel.
    fn open(&mut self, patience: Duration) {
        self.ended = false;
        self.meter = PaceMeter::new(Pace::without_rate(patience));
    }
}

impl Reply for StreamReply<'_> {
    type Body = Self;

    fn body(&mut self) -> &mut Self {
        self
    }

    /// The `h2` crate keeps interim responses without a limit until the client reads them, so they are dropped for a
    /// client that reads nothing. The first 100 is always sent: the client may wait for it with its body.
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), PeerError> {
        let is_first_continue = head.status == 100 && !std::mem::replace(&mut self.has_continued, true);
        if self.session.is_blocked.get() && !is_first_continue {
            return Ok(());
        }
        if let (ResponseHalf::Responding(respond), Some(response)) =
            (&mut *self.half.borrow_mut(), h2_head::write_response(head))
        {
            respond.send_informational(response)?;
        }
        // Lets the connection send it, or detect that the client reads nothing, before the next one.
        tokio::task::yield_now().await;
        Ok(())
    }

    fn begin(&mut self, head: &ResponseHead, _keep: bool) -> Result<(), PeerError> {
        let mut response = h2_head::write_response(head).ok_or(PeerError::Gone)?;
        let opens_tunnel = self.websocket && h2_connect::make_answer(&mut response);
        let mut half = self.half.borrow_mut();
        let ResponseHalf::Responding(respond) = &mut *half else { return Err(PeerError::Gone) };
        self.ended = matches!(head.length, Length::Empty | Length::Fixed(0));
        self.session.budget.charge_head(response.headers_mut(), self.session.is_blocked.get());
        let stream = respond.send_response(response, self.ended && !opens_tunnel)?;
        *half = ResponseHalf::Sending(stream);
        self.has_begun = true;
        Ok(())
    }

    fn task_bytes(&self) -> usize {
        TASK_BYTES
    }

    fn sent(&self) -> Sent {
        Sent { protocol: "HTTP/2.0", has_begun: self.has_begun, body_bytes: self.body_bytes }
    }
}

impl Spill for StreamReply<'_> {
    async fn spill(&mut self, data: &[u8], rest: Rest, overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
        let mut left = data;
        self.body_bytes += data.len() as u64;
        // The last piece gets no grace, because the permit is released once it is sent or buffered. Neither does a
        // stream: its `overflow` is closed, so it is not buffered in any case.
        let has_grace = rest != Rest::End && !overflow.is_closed;
        while !left.is_empty() && overflow.is_empty() {
            let (began_ms, length, taken) = (self.timer.now_ms(), left.len(), self.session.taken.get());
            let mut grace = self.grace;
            let sent = grace.wait(has_grace, |cx| self.poll_some(&mut left, cx)).await;
            grace.took((length - left.len()) as u64);
            self.grace = grace;
            // If the client read nothing, this wait counts for its minimum rate too.
            self.meter.moved(self.session.taken.get() - taken, self.timer.now_ms() - began_ms);
            let Some(sent) = sent else { break };
            sent?;
        }
        if rest == Rest::End && overflow.is_empty() && self.hand_over(left)? {
            return Ok(());
        }
        loop {
            overflow.append(&mut left, rest == Rest::End);
            if left.is_empty() {
                return Ok(());
            }
            overflow.note_full();
            if overflow.is_empty() {
                self.body_bytes -= left.len() as u64;
                return Box::pin(without_room(self.send(left, rest), overflow)).await;
            }
            // In a box, so that streams that need no room do not carry it.
            Box::pin(make_room(self, overflow)).await?;
        }
    }

    fn spill_end(&mut self, trailers: Option<&Fields>, _overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
        self.trailers = trailers.map(h2_head::write_trailers);
        self.ends_after_drain = true;
        Ok(())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>, overflow: &mut Overflow<'_>) -> Poll<Result<(), PeerError>> {
        while !overflow.is_empty() {
            let Poll::Ready(first) = overflow.poll_first(cx)? else {
                // The gate waits for the disk, not for the client.
                self.end_wait();
                return Poll::Pending;
            };
            self.begin_wait();
            let mut left = first.unwrap_or_default();
            let length = left.len();
            let timer = self.timer;
            ready!(h2_body::timed(timer, Way::Out, cx, |cx| self.poll_some(&mut left, cx)))??;
            let sent = length - left.len();
            overflow.consume(sent);
            self.end_wait();
        }
        if !std::mem::take(&mut self.ends_after_drain) || std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(h2_body::end(self.half.borrow_mut().stream()?, self.trailers.take()))
    }
}

impl Sink for StreamReply<'_> {
    async fn send(&mut self, data: &[u8], rest: Rest) -> Result<(), PeerError> {
        self.body_bytes += data.len() as u64;
        if rest == Rest::End && self.hand_over(data)? {
            return Ok(());
        }
        let mut left = data;
        while !left.is_empty() {
            let (began_ms, taken) = (self.timer.now_ms(), self.session.taken.get());
            self.timer.set(Way::Out, self.meter.patience());
            let timer = self.timer;
            poll_fn(|cx| h2_body::timed(timer, Way::Out, cx, |cx| self.poll_some(&mut left, cx))).await??;
            // A client with a slow line may have read earlier bytes on other streams: they count for this one too.
            self.meter.moved(self.session.taken.get() - taken, self.timer.now_ms() - began_ms);
        }
        self.timer.clear(Way::Out);
        Ok(())
    }

    async fn end(&mut self, trailers: Option<&Fields>) -> Result<(), PeerError> {
        let mut half = self.half.borrow_mut();
        let stream = half.stream()?;
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        h2_body::end(stream, trailers.map(h2_head::write_trailers))
    }
}

//! Requests to a backend over HTTP/2: many at once on few connections. Each worker thread has its own connections.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::Request;
use tollgate_wire::http1::{Fields, ResponseHead};

use crate::gate::http::body::{PeerError, Piece, Rest, Sink, Source};
use crate::gate::http::h2_body::{self, StreamReader, timed};
use crate::gate::http::h2_head;
use crate::gate::http::h2_io::H2Io;
use crate::gate::http::halves::{BackendAnswer, Forward};
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::pace::Pace;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::{Timer, Way};

/// Bytes of one response that the backend may send before the gate has read them.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Concurrent requests on one connection, even if the backend permits more.
const STREAMS_MAX: u32 = 100;
/// The same for all responses of a connection: large enough that responses whose clients do not read block only
/// themselves.
const CONNECTION_WINDOW: u32 = STREAMS_MAX * STREAM_WINDOW;
/// Unsent bytes of one request that the `h2` crate keeps.
const SEND_BUFFER: usize = 64 * 1024;

/// A connection to a backend, shared by the requests of one worker.
#[derive(Clone)]
pub(crate) struct H2Connection {
    sender: SendRequest<Bytes>,
    /// Requests that have not ended.
    under_way: Rc<Cell<u32>>,
    ended: Rc<Cell<bool>>,
    /// Whether it gets no more requests, although it is open.
    retired: Rc<Cell<bool>>,
    /// The end of its last request, in milliseconds since the start of the worker; `u64::MAX` before the first one.
    used_ms: Rc<Cell<u64>>,
}

impl H2Connection {
    /// Starts HTTP/2 on a socket. A task of its own transfers the frames until the connection ends. `patience`: the
    /// longest wait for the backend to accept bytes.
    pub(crate) async fn begin(socket: Socket, patience: Duration) -> io::Result<Self> {
        let io = H2Io::new(Rc::new(socket), ReadBuffer::default(), patience);
        let handshake = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_push(false)
            .handshake(io);
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        let ended = Rc::new(Cell::new(false));
        let marked = ended.clone();
        tokio::task::spawn_local(async move {
            let _ = connection.await;
            marked.set(true);
        });
        let used_ms = Rc::new(Cell::new(u64::MAX));
        Ok(Self { sender, under_way: Rc::default(), ended, retired: Rc::default(), used_ms })
    }

    /// Sends no more requests on this connection. It ends with those that it has.
    pub(crate) fn retire(&self) {
        self.retired.set(true);
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether it gets no more requests.
    fn is_over(&self) -> bool {
        self.ended.get() || self.retired.get()
    }

    /// Whether the backend accepts no more requests on it (GOAWAY). It finishes those that it has.
    fn is_leaving(&mut self) -> bool {
        matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// Whether it has room for another request.
    fn has_room(&self) -> bool {
        let under_way = self.under_way.get();
        !self.is_over() && under_way < STREAMS_MAX && (under_way as usize) < self.sender.current_max_send_streams()
    }
}

/// The connections of one worker, by the id of the backend.
#[derive(Default)]
pub(crate) struct H2Connections {
    by_backend: RefCell<HashMap<u64, Vec<H2Connection>>>,
}

impl H2Connections {
    /// The connection with the fewest requests that has room.
    pub(crate) fn pick(&self, backend: u64) -> Option<H2Connection> {
        let mut by_backend = self.by_backend.borrow_mut();
        let connections = by_backend.get_mut(&backend)?;
        connections.retain_mut(|connection| !connection.is_over() && !connection.is_leaving());
        let with_room = connections.iter().filter(|connection| connection.has_room());
        with_room.min_by_key(|connection| connection.under_way.get()).cloned()
    }

    /// Adds a connection that further requests may use.
    pub(crate) fn add(&self, backend: u64, connection: H2Connection) {
        self.by_backend.borrow_mut().entry(backend).or_default().push(connection);
    }

    /// Removes connections that have ended, that were not used for too long, or whose backend was removed. They end
    /// with their last request.
    pub(crate) fn sweep(&self, now_ms: u64, wait_max: Duration, is_backend: impl Fn(u64) -> bool) {
        let oldest_ms = now_ms.saturating_sub(wait_max.as_millis() as u64);
        self.by_backend.borrow_mut().retain(|backend, connections| {
            connections.retain(|connection| {
                let waits = connection.under_way.get() == 0 && connection.used_ms.get() < oldest_ms;
                !waits && !connection.is_over()
            });
            is_backend(*backend)
        });
    }
}

/// The response on one stream.
pub(crate) struct H2Answer {
    /// Resolves to the head of the final response; none afterwards.
    response: Option<ResponseFuture>,
    /// The body, once the head was read.
    body: Option<StreamReader>,
    pace: Pace,
    /// Whether it responds to a HEAD.
    to_head: bool,
    /// Whether any head has come.
    begun: bool,
    /// The deadlines of this stream.
    pub(crate) timer: Rc<Timer>,
    _slot: UnderWay,
}

/// Counts a request until it is dropped, and stores the time of its end.
struct UnderWay {
    count: Rc<Cell<u32>>,
    used_ms: Rc<Cell<u64>>,
    timer: Rc<Timer>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
        self.used_ms.set(self.timer.now_ms());
    }
}

/// The body of the request on one stream.
pub(crate) struct H2Forward {
    stream: SendStream<Bytes>,
    /// Whether the end was sent.
    ended: bool,
    timer: Rc<Timer>,
    /// The longest wait for the backend to accept bytes.
    patience: Duration,
}

/// Sends the head of a request. `ends`: it has no body. `to_head`: its method is HEAD. `pace`: the minimum rate of the
/// response.
pub(crate) async fn open(
    connection: &H2Connection,
    request: Request<()>,
    ends: bool,
    to_head: bool,
    pace: Pace,
    timer: Timer,
) -> Result<(H2Answer, H2Forward), PeerError> {
    let timer = Rc::new(timer);
    let (count, used_ms) = (connection.under_way.clone(), connection.used_ms.clone());
    count.set(count.get() + 1);
    let _slot = UnderWay { count, used_ms, timer: timer.clone() };
    let mut sender = connection.sender.clone();
    timer.set(Way::Out, pace.idle_max);
    poll_fn(|cx| timed(&timer, Way::Out, cx, |cx| sender.poll_ready(cx))).await??;
    timer.clear(Way::Out);
    let (response, stream) = sender.send_request(request, ends)?;
    let sink = H2Forward { stream, ended: ends, timer: timer.clone(), patience: pace.idle_max };
    Ok((H2Answer { response: Some(response), body: None, pace, to_head, begun: false, timer, _slot }, sink))
}

impl Forward for H2Forward {
    /// The gate cannot see what the backend does after a reset.
    async fn break_off(&mut self) -> bool {
        self.stream.send_reset(Reason::CANCEL);
        false
    }
}

impl BackendAnswer for H2Answer {
    async fn head(&mut self, head: &mut ResponseHead) -> Result<(), PeerError> {
        let (timer, to_head) = (&self.timer, self.to_head);
        let Some(future) = &mut self.response else { return Err(PeerError::Gone) };
        let polled = poll_fn(|cx| {
            timed(timer, Way::In, cx, |cx| {
                if let Poll::Ready(Some(interim)) = future.poll_informational(cx) {
                    return Poll::Ready(interim.map(Err));
                }
                std::pin::Pin::new(&mut *future).poll(cx).map_ok(Ok)
            })
        });
        match polled.await?? {
            Ok(response) => {
                self.begun = true;
                self.response = None;
                h2_head::read_response(&response, head, to_head, response.body().is_end_stream())?;
                self.body = Some(StreamReader::new(response.into_body(), self.pace));
            }
            Err(interim) => {
                self.begun = true;
                h2_head::read_response(&interim, head, to_head, false)?;
            }
        }
        if head.status == 101 {
            return Err(PeerError::Malformed("an upgrade over HTTP/2"));
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.begun
    }

    fn has_head(&self) -> bool {
        self.body.is_some()
    }
}

impl Source for H2Answer {
    async fn next(&mut self) -> Result<Piece<'_>, PeerError> {
        match &mut self.body {
            Some(body) => body.next(&self.timer).await,
            None => Err(PeerError::Gone),
        }
    }
}

impl Sink for H2Forward {
    async fn send(&mut self, data: &[u8], _rest: Rest) -> Result<(), PeerError> {
        let mut left = data;
        while !left.is_empty() {
            self.timer.set(Way::Out, self.patience);
            poll_fn(|cx| {
                timed(&self.timer, Way::Out, cx, |cx| h2_body::poll_send(&mut self.stream, &mut left, None, cx))
            })
            .await??;
        }
        self.timer.clear(Way::Out);
        Ok(())
    }

    async fn end(&mut self, trailers: Option<&Fields>) -> Result<(), PeerError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        h2_body::end(&mut self.stream, trailers.map(h2_head::write_trailers))
    }
}

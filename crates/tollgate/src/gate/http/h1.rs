//! A client's HTTP/1.1 connection: one request after the other, each answered before the next is read. The connection
//! is kept until the client leaves, a timeout passes, or a response or failure requires that it is closed.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Fault, Length, ResponseHead, Version};

use super::body::{PeerError, Sink as _};
use super::exchange::{After, Exchange, Inbound};
use super::forward;
use super::h1_body::{BodyReader, BodyWriter};
use super::halves::{ClientBody as _, Reply, Sent};
use super::scratch::Scratch;
use super::tunnel;
use super::worker::Worker;
use crate::gate::decide::identify::ConnectionPeer;
use crate::gate::net::buffer::{LARGE, ReadBuffer};
use crate::gate::net::pace::Pace;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::Way;
use crate::gate::observe::counters::WorkerCounter;
use crate::settings::Gate as Settings;

/// The time for which, and the number of bytes that, the gate reads from a client that still sends while its connection
/// is closed. Closing with unread bytes resets the connection, and the client may lose the response.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 256 * 1024;
/// The largest head, in bytes: nothing more can be received into a full buffer.
const HEAD_BYTES_MAX: usize = LARGE - 1;

/// If the client sends nothing for this long after a response, the memory for serving requests is freed, and the
/// connection is only idle. A client that sends one request after the other pauses for less, so its requests allocate
/// nothing.
const PAUSE_BETWEEN_REQUESTS: Duration = Duration::from_millis(200);

/// Serves requests until the connection ends. `buffer` contains the bytes that were read to detect HTTP/1.1.
///
/// While the connection is idle, and until a head is complete, there is only this future, which is small. The future of
/// a request is ten times as large; it is allocated with the first head after a pause and lasts until the next pause.
pub(crate) async fn serve(socket: &Socket, mut buffer: ReadBuffer, peer: &ConnectionPeer, worker: &Rc<Worker>) {
    let mut patience = worker.settings().timeouts.head;
    loop {
        if await_request(socket, &mut buffer, patience).await != Awaited::Request {
            return;
        }
        let Some(head) = find_head(socket, &mut buffer, &worker.settings()).await else { return };
        match Box::pin(serve_requests(socket, &mut buffer, head, peer, worker)).await {
            After::Keep => patience = worker.settings().timeouts.keep_alive,
            After::Cut | After::Left | After::Unanswered => return,
            After::Close => return linger(socket, &mut buffer).await,
            After::Tunnel(backend, slot) => {
                let (_counted, idle_max) = (worker.count_tunnel(), worker.settings().timeouts.upgraded_idle);
                return Box::pin(tunnel::run(socket, buffer, *backend, slot, idle_max)).await;
            }
        }
    }
}

/// Serves the request whose head is in the buffer, and further ones until the client pauses ([`After::Keep`]) or the
/// connection is not kept.
async fn serve_requests(
    socket: &Socket,
    buffer: &mut ReadBuffer,
    mut head: Result<Range<usize>, Fault>,
    peer: &ConnectionPeer,
    worker: &Rc<Worker>,
) -> After {
    loop {
        // A request uses the settings that are in force when it arrives. A connection may live longer.
        let settings = &*worker.settings();
        let mut scratch = worker.scratch();
        let fault = head.and_then(|range| read_head(buffer, range, &mut scratch, settings)).err();
        let after = serve_one(socket, buffer, &mut scratch, fault, peer, worker, settings).await;
        worker.keep_scratch(scratch);
        if !matches!(after, After::Keep) {
            return after;
        }
        let keep_alive = settings.timeouts.keep_alive;
        // `Some(None)`: too many connections of the worker keep the memory of a request already.
        let paused = buffer.is_empty().then(|| worker.pause_request());
        if matches!(paused, Some(None)) && keep_alive > PAUSE_BETWEEN_REQUESTS {
            return After::Keep;
        }
        match await_request(socket, buffer, keep_alive.min(PAUSE_BETWEEN_REQUESTS)).await {
            Awaited::Request => {}
            Awaited::Nothing if keep_alive > PAUSE_BETWEEN_REQUESTS => return After::Keep,
            Awaited::Nothing | Awaited::End => return After::Left,
        }
        drop(paused);
        match find_head(socket, buffer, settings).await {
            Some(found) => head = found,
            None => return After::Left,
        }
    }
}

/// How a wait for a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// At least its first byte is in the buffer.
    Request,
    /// Nothing came in time.
    Nothing,
    /// The connection has ended, or must end.
    End,
}

/// Waits for the first byte of a request. The buffer has no memory in the meantime.
async fn await_request(socket: &Socket, buffer: &mut ReadBuffer, patience: Duration) -> Awaited {
    if !buffer.is_empty() {
        return Awaited::Request;
    }
    socket.timer.set(Way::In, patience);
    socket.timer.set_idle(true);
    match socket.read(buffer).await {
        Ok(1..) => {
            socket.timer.set_idle(false);
            Awaited::Request
        }
        // The connection is still idle.
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Awaited::Nothing,
        Ok(0) | Err(_) => Awaited::End,
    }
}

/// Reads until the buffer contains a whole head, and returns its range, or its fault. None if the connection ended or
/// took too long.
async fn find_head(
    socket: &Socket,
    buffer: &mut ReadBuffer,
    settings: &Settings,
) -> Option<Result<Range<usize>, Fault>> {
    let bounds = Bounds {
        line_bytes_max: settings.bounds.line_bytes_max.min(HEAD_BYTES_MAX),
        head_bytes_max: settings.bounds.head_bytes_max.min(HEAD_BYTES_MAX),
    };
    let mut scan = Scan::default();
    let mut is_timed = false;
    loop {
        match scan.look(buffer.bytes(), bounds, true) {
            Ok(Some(head)) => return Some(Ok(head)),
            Ok(None) => {}
            Err(fault) => return Some(Err(fault)),
        }
        if !is_timed {
            // From here on the whole head has this time, however slowly its bytes come.
            socket.timer.set(Way::In, settings.timeouts.head);
            is_timed = true;
        }
        if !matches!(socket.read_compact(buffer).await, Ok(1..)) {
            return None;
        }
    }
}

/// Parses a whole head, and removes it from the buffer.
fn read_head(
    buffer: &mut ReadBuffer,
    range: Range<usize>,
    scratch: &mut Scratch,
    settings: &Settings,
) -> Result<(), Fault> {
    scratch.request.parse(&buffer.bytes()[range.clone()])?;
    if scratch.request.fields.len() > settings.bounds.fields_max {
        return Err(Fault::HeadTooLarge);
    }
    buffer.consume(range.end);
    Ok(())
}

/// Serves the request whose head is in `scratch`, or responds to a malformed head, if there is a `fault`.
async fn serve_one(
    socket: &Socket,
    buffer: &mut ReadBuffer,
    scratch: &mut Scratch,
    fault: Option<Fault>,
    peer: &ConnectionPeer,
    worker: &Rc<Worker>,
    settings: &Settings,
) -> After {
    let Scratch { request, response, decoder, out, backend } = scratch;
    let pace = |idle_max| Pace { idle_max, bytes_per_sec_min: Some(settings.bounds.body_bytes_per_sec_min) };
    out.clear();
    // A malformed head has set neither of these.
    let (version, length) = match fault {
        None => (request.version, request.length),
        Some(_) => (Version::Http11, Length::Empty),
    };
    let mut body = BodyReader::new(socket, buffer, decoder, length, pace(settings.timeouts.body_idle));
    let writer = BodyWriter::new(socket, out, Length::Empty, pace(settings.timeouts.write));
    let mut reply = H1Reply { version, closes: false, has_begun: false, body: writer };
    let keep = request.keeps_alive();
    let inbound = Inbound { worker, settings, peer, request, response, keep };
    let mut exchange = Exchange::new(inbound, backend, &mut body, &mut reply);
    let after = match fault {
        None => {
            socket.timer.clear(Way::In);
            socket.timer.asked();
            worker.counters.count(WorkerCounter::Request);
            exchange.run().await
        }
        Some(fault) => exchange.reject(fault).await,
    };
    drop(exchange);
    body.give_back();
    match after {
        After::Keep if reply.closes || !body.has_ended() => After::Close,
        after => after,
    }
}

/// Closes the connection for writing, and gives the client time to read the last response.
pub(crate) async fn linger(socket: &Socket, buffer: &mut ReadBuffer) {
    socket.timer.set(Way::Out, LINGER);
    if socket.shutdown().await.is_err() {
        return;
    }
    socket.timer.set(Way::In, LINGER);
    let mut left = LINGER_BYTES_MAX;
    loop {
        let length = buffer.bytes().len();
        buffer.consume(length);
        match socket.read(buffer).await {
            Ok(length @ 1..) if length <= left => left -= length,
            _ => return,
        }
    }
}

/// The response to an HTTP/1.x client.
struct H1Reply<'a> {
    version: Version,
    /// Whether the end of the connection delimits the response.
    closes: bool,
    /// Whether the head of the final response was sent.
    has_begun: bool,
    body: BodyWriter<'a>,
}

impl<'a> Reply for H1Reply<'a> {
    type Body = BodyWriter<'a>;

    fn body(&mut self) -> &mut BodyWriter<'a> {
        &mut self.body
    }

    async fn interim(&mut self, head: &ResponseHead) -> Result<(), PeerError> {
        if self.version == Version::Http10 {
            return Ok(());
        }
        forward::write_response(self.body.out, head, Length::Empty, self.version, true);
        self.body.flush().await
    }

    fn begin(&mut self, head: &ResponseHead, keep: bool) -> Result<(), PeerError> {
        let length = forward::response_length(head.length, self.version);
        self.closes = length == Length::UntilClose || !keep;
        self.body.length = length;
        forward::write_response(self.body.out, head, length, self.version, !self.closes);
        self.has_begun = true;
        Ok(())
    }

    fn sent(&self) -> Sent {
        let protocol = match self.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        };
        Sent { protocol, has_begun: self.has_begun, body_bytes: self.body.body_bytes }
    }
}

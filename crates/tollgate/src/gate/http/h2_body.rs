//! Bodies of HTTP/2 with flow control, on both sides of the gate: requests of clients and responses of backends are
//! read by a [`StreamReader`], and the functions below write them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use tollgate_wire::http1::Fields;

use super::body::{PeerError, Piece, Rest};
use super::h2_head;
use super::h2_unsent::UnsentBytes;
use crate::gate::decide::flow::PAUSE_MAX;
use crate::gate::net::pace::{Pace, PaceMeter};
use crate::gate::net::timer::{Timer, Way};

impl From<h2::Error> for PeerError {
    fn from(error: h2::Error) -> Self {
        // Only errors that the crate itself detects are violations of the protocol.
        if error.is_library() && !error.is_go_away() { Self::Malformed("not HTTP/2") } else { Self::Gone }
    }
}

/// Reads one body from a stream.
pub(crate) struct StreamReader {
    pub(super) stream: RecvStream,
    /// Bytes that [`gather`](Self::gather) has buffered, and that are not returned yet. They do not count in the
    /// windows: other streams of the connection must not wait for this one.
    pub(super) ahead: Vec<u8>,
    /// The piece that was returned last, if it came from `ahead`.
    given: Vec<u8>,
    /// The piece that was returned last, if it was read from the stream. It counts in the windows until the next call.
    lent: Bytes,
    trailers: Fields,
    /// Whether the whole body has been read. It is also set while the stream is to become a tunnel, so that nothing
    /// is read from it.
    pub(super) ended: bool,
    meter: PaceMeter,
    /// The length of the body, if known. The body ends there, even if the peer does not end the stream.
    pub(super) length: Option<u64>,
}

impl StreamReader {
    pub(crate) fn new(stream: RecvStream, pace: Pace) -> Self {
        let ended = stream.is_end_stream();
        Self {
            stream,
            ahead: Vec::new(),
            given: Vec::new(),
            lent: Bytes::new(),
            trailers: Fields::default(),
            ended,
            meter: PaceMeter::new(pace),
            length: None,
        }
    }

    /// The next piece.
    pub(crate) async fn next(&mut self, timer: &Timer) -> Result<Piece<'_>, PeerError> {
        self.give_back();
        self.given = Vec::new();
        if !self.ahead.is_empty() {
            self.given = std::mem::take(&mut self.ahead);
            let rest = match (self.ended, self.trailers.is_empty()) {
                (true, true) => Rest::End,
                (true, false) => Rest::AtHand,
                (false, _) => Rest::ToCome,
            };
            return Ok(Piece::Data(&self.given, rest));
        }
        match self.read(timer).await? {
            Some(data) => {
                self.lent = data;
                let rest = if self.stream.is_end_stream() { Rest::End } else { Rest::ToCome };
                Ok(Piece::Data(&self.lent, rest))
            }
            None => {
                timer.clear(Way::In);
                Ok(Piece::End((!self.trailers.is_empty()).then_some(&self.trailers)))
            }
        }
    }

    /// Buffers the whole body, if it is no longer than `bytes_max`, and returns whether it is complete.
    ///
    /// With `pause_max`, it gives up after a pause of that length.
    pub(crate) async fn gather(
        &mut self,
        timer: &Timer,
        bytes_max: usize,
        pause_max: Option<Duration>,
    ) -> Result<bool, PeerError> {
        while !self.ended && self.ahead.len() <= bytes_max {
            let data = match pause_max {
                None => self.read(timer).await?,
                Some(pause_max) => match tokio::time::timeout(pause_max, self.read(timer)).await {
                    Ok(data) => data?,
                    Err(_) => break,
                },
            };
            let Some(data) = data else { break };
            self.ahead.extend_from_slice(&data);
            let _ = self.stream.flow_control().release_capacity(data.len());
        }
        timer.clear(Way::In);
        Ok(self.ended)
    }

    /// The bytes of the next frame that has any; none at the end, after the trailers.
    async fn read(&mut self, timer: &Timer) -> Result<Option<Bytes>, PeerError> {
        while !self.ended {
            let began_ms = timer.now_ms();
            timer.set(Way::In, self.meter.patience());
            let complete = self.length.is_some_and(|length| self.meter.bytes >= length);
            let data = poll_fn(|cx| timed(timer, Way::In, cx, |cx| self.stream.poll_data(cx)));
            let data = if complete {
                // Trailers may follow, but not much later.
                match tokio::time::timeout(PAUSE_MAX, data).await {
                    Ok(data) => data?,
                    Err(_) => {
                        self.ended = true;
                        break;
                    }
                }
            } else {
                data.await?
            };
            self.meter.moved(0, timer.now_ms() - began_ms);
            match data {
                Some(data) => {
                    let data = data?;
                    self.meter.moved(data.len() as u64, 0);
                    if !data.is_empty() {
                        return Ok(Some(data));
                    }
                }
                None => {
                    let trailers =
                        poll_fn(|cx| timed(timer, Way::In, cx, |cx| self.stream.poll_trailers(cx))).await??;
                    if let Some(map) = trailers {
                        h2_head::read_trailers(&map, &mut self.trailers);
                    }
                    self.ended = true;
                }
            }
        }
        Ok(None)
    }

    /// Reopens the windows for the bytes of the last piece.
    fn give_back(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        if !lent.is_empty() {
            let _ = self.stream.flow_control().release_capacity(lent.len());
        }
    }
}

/// Sends as much of `left` as the peer's window permits, and removes it. Pending while the window is closed. `unsent`
/// limits the unsent bytes of a client's connection; none for a backend.
pub(crate) fn poll_send(
    stream: &mut SendStream<Bytes>,
    left: &mut &[u8],
    unsent: Option<&Arc<UnsentBytes>>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), PeerError>> {
    ready!(poll_window(stream, left.len(), cx))?;
    let window = stream.capacity().min(left.len());
    let room = unsent.map_or(window, |unsent| unsent.room(window, cx));
    if room == 0 && !left.is_empty() {
        return Poll::Pending;
    }
    let (now, later) = left.split_at(room);
    *left = later;
    let data = unsent.map_or_else(|| Bytes::copy_from_slice(now), |unsent| unsent.hand_over(now));
    Poll::Ready(stream.send_data(data, false).map_err(PeerError::from))
}

/// Waits until the peer's window is open.
fn poll_window(stream: &mut SendStream<Bytes>, bytes: usize, cx: &mut Context<'_>) -> Poll<Result<(), PeerError>> {
    stream.reserve_capacity(bytes);
    while stream.capacity() == 0 {
        ready!(stream.poll_capacity(cx)).ok_or(PeerError::Gone)??;
    }
    Poll::Ready(Ok(()))
}

/// Ends a body.
pub(crate) fn end(stream: &mut SendStream<Bytes>, trailers: Option<HeaderMap>) -> Result<(), PeerError> {
    match trailers {
        Some(trailers) => stream.send_trailers(trailers)?,
        None => stream.send_data(Bytes::new(), true)?,
    }
    Ok(())
}

/// Polls with the deadline of this direction.
pub(crate) fn timed<T>(
    timer: &Timer,
    way: Way,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<Result<T, PeerError>> {
    match poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending if timer.is_over(way, cx) => Poll::Ready(Err(PeerError::Slow)),
        Poll::Pending => Poll::Pending,
    }
}

//! Sends a response to the client, and buffers it while the client reads too slowly.
//!
//! The request keeps its permit, which counts it as in flight at the backend, until the backend has sent everything,
//! whether or not the client reads. The backend may be computing the rest: if the permit were released, requests of
//! clients that do not read would be free. When there is no room in the buffer, the gate stops reading from the
//! backend, and the permit is kept until the client reads or is disconnected for being too slow ([`HELD_UP_MAX`]).
//!
//! The download ends when the backend has sent everything, not when the client has read it. The rest is in the
//! [`Overflow`]; [`drain`] sends it while other requests already use the connection to the backend.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tollgate_wire::http1::{Fields, Length, ResponseHead};

use super::body::{Announced, PeerError, Piece, Rest, SideError, Source};
use super::spool::Overflow;

/// The total time that the gate waits for a client in each [`GRACE_BYTES`] of a response, before it buffers the
/// response. The request keeps its permit in this time, so the client is charged for it. A client that keeps up is late
/// by microseconds, and a copy each time would cost more than the wait.
const GRACE: Duration = Duration::from_millis(5);
/// The bytes after which a client has its whole [`GRACE`] again: 1 MiB in 5 ms is 1.7 Gbit/s.
const GRACE_BYTES: u64 = 1024 * 1024;
/// The interval at which a download without room looks for free room.
const RETRY: Duration = Duration::from_millis(200);
/// The time for which a client may block the backend because there is no room for its response. It must read one block
/// of 64 KiB in this time, which is 13 kB/s. `timeouts.write` would be too long, because the permit is kept, and a
/// backend may have few of them.
const HELD_UP_MAX: Duration = Duration::from_secs(5);

/// The remaining time for waits before a response is buffered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grace {
    left: Duration,
    /// Bytes that were sent since it began.
    bytes: u64,
}

impl Grace {
    pub(crate) const fn new() -> Self {
        Self { left: GRACE, bytes: 0 }
    }

    /// The result of `poll`; none if it is not ready and no time is left. Without `has_grace` it is polled only once.
    pub(crate) async fn wait<T>(
        &mut self,
        has_grace: bool,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(poll(cx))).await {
            return Some(output);
        }
        if !has_grace || self.left.is_zero() {
            return None;
        }
        let began = Instant::now();
        let output = tokio::time::timeout(self.left, poll_fn(poll)).await.ok();
        self.left = self.left.saturating_sub(began.elapsed());
        output
    }

    /// Counts bytes that were sent to the client.
    pub(crate) fn took(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= GRACE_BYTES {
            *self = Self::new();
        }
    }
}

/// The body of a response to a client that may be slower than the backend. Implemented for HTTP/1.1 and HTTP/2.
pub(crate) trait Spill {
    /// Sends a piece of the body. The part that the client does not read at once goes into `overflow`. Waits while
    /// there is no room for it.
    async fn spill(&mut self, data: &[u8], rest: Rest, overflow: &mut Overflow<'_>) -> Result<(), PeerError>;

    /// Ends the body, after the content of `overflow`.
    fn spill_end(&mut self, trailers: Option<&Fields>, overflow: &mut Overflow<'_>) -> Result<(), PeerError>;

    /// Sends the buffered bytes as fast as the client reads them. Ready when none are left.
    fn poll_drain(&mut self, cx: &mut Context<'_>, overflow: &mut Overflow<'_>) -> Poll<Result<(), PeerError>>;
}

/// Whether the response may be buffered. An upgrade, an event stream and a gRPC call may not: buffering an endless
/// response frees no backend. The backend may forbid it too (`X-Accel-Buffering: no`).
pub(crate) fn is_bufferable(response: &ResponseHead) -> bool {
    let is_media = |name: &[u8]| has_media_type(response, name);
    let forbidden = response.fields.find(b"x-accel-buffering").is_some_and(|value| value.eq_ignore_ascii_case(b"no"));
    response.status != 101 && !forbidden && !is_media(b"text/event-stream") && !is_media(b"application/grpc")
}

/// Whether the media type of a response begins with `name`.
pub(crate) fn has_media_type(response: &ResponseHead, name: &[u8]) -> bool {
    let media = response.fields.find(b"content-type").unwrap_or_default();
    media.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

/// Reads the body of a response from its backend to the end, and sends it to the client or buffers it. Calls `held_up`
/// when there was no room for it, so that the backend may have waited for the client. `length` is the framing that the
/// head announced.
///
/// It does not return before there is room for the last piece: without a permit nothing would bound the responses that
/// wait for room. The end of a small response is not sent yet when it returns; [`drain`] sends it. So the request is
/// settled before its client can send the next one.
pub(crate) async fn download(
    backend: &mut impl Source,
    client: &mut impl Spill,
    overflow: &mut Overflow<'_>,
    length: Length,
    mut held_up: impl FnMut(),
) -> Result<(), SideError> {
    let mut announced = Announced::by(length);
    loop {
        let mut next = pin!(backend.next());
        let piece = poll_fn(|cx| {
            if let Poll::Ready(piece) = next.as_mut().poll(cx) {
                return Poll::Ready(piece.map_err(SideError::Backend));
            }
            match client.poll_drain(cx, overflow) {
                Poll::Ready(Err(broken)) => Poll::Ready(Err(SideError::Client(broken))),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        });
        match piece.await? {
            Piece::Data(data, rest) => {
                announced.take(data.len()).map_err(SideError::Backend)?;
                client.spill(data, rest, overflow).await.map_err(SideError::Client)?;
                overflow.set_stalled(false);
                if overflow.was_full {
                    held_up();
                }
            }
            Piece::End(trailers) => {
                announced.end().map_err(SideError::Backend)?;
                return client.spill_end(trailers, overflow).map_err(SideError::Client);
            }
        }
    }
}

/// Sends the part of the response that the client has not read.
pub(crate) async fn drain(client: &mut impl Spill, overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
    poll_fn(|cx| client.poll_drain(cx, overflow)).await
}

/// Waits until there is room in a buffer that is not empty, and sends its content in the meantime. Fails if the client
/// reads too slowly.
pub(crate) async fn make_room(client: &mut impl Spill, overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
    let mut held_up = Duration::ZERO;
    loop {
        let room = poll_fn(|cx| match client.poll_drain(cx, overflow) {
            Poll::Pending if overflow.poll_room(cx) => Poll::Ready(Ok(())),
            polled => polled,
        });
        if let Ok(room) = tokio::time::timeout(RETRY, room).await {
            return room;
        }
        overflow.note_full();
        if !overflow.waits_for_disk() && !overflow.is_closed {
            held_up += RETRY;
        }
        if held_up >= HELD_UP_MAX {
            return Err(PeerError::Slow);
        }
    }
}

/// Waits for a piece to be sent for which there is no buffer at all. The client has as little time as in [`make_room`],
/// unless its response is a stream, which is never buffered.
pub(crate) async fn without_room<E: Into<PeerError>>(
    sent: impl Future<Output = Result<(), E>>,
    overflow: &Overflow<'_>,
) -> Result<(), PeerError> {
    if overflow.is_closed {
        return sent.await.map_err(Into::into);
    }
    tokio::time::timeout(HELD_UP_MAX, sent).await.map_err(|_| PeerError::Slow)?.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_has_its_grace_once_in_each_mebibyte() {
        let mut grace = Grace::new();
        assert_eq!(grace.wait(true, |_| Poll::Ready(1)).await, Some(1));
        assert_eq!(grace.left, GRACE, "nobody waited");
        assert_eq!(grace.wait(false, |_| Poll::<()>::Pending).await, None);
        assert_eq!(grace.left, GRACE, "nobody waited");
        assert_eq!(grace.wait(true, |_| Poll::<()>::Pending).await, None);
        grace.took(GRACE_BYTES - 1);
        assert_eq!(grace.left, Duration::ZERO);
        grace.took(1);
        assert_eq!((grace.left, grace.bytes), (GRACE, 0));
    }

    #[test]
    fn events_calls_upgrades_and_what_the_backend_forbids_are_not_buffered() {
        let buffers = |status: u16, name: &str, value: &str| {
            let mut head = ResponseHead { status, ..ResponseHead::default() };
            head.fields.push(name.as_bytes(), value.as_bytes());
            is_bufferable(&head)
        };
        assert!(buffers(200, "content-type", "text/html"));
        assert!(buffers(200, "x-accel-buffering", "yes"));
        assert!(!buffers(200, "x-accel-buffering", "No"));
        assert!(!buffers(200, "content-type", "Text/Event-Stream; charset=utf-8"));
        assert!(!buffers(200, "content-type", "application/grpc+proto"));
        assert!(!buffers(101, "upgrade", "websocket"));
    }
}

//! A response on its way to the client: sent as it comes, and buffered while the client's socket takes no more.
//!
//! The download ends when the backend has sent everything, not when the client has it. What is left is in the [`Overflow`], and is sent by [`finish`], when the
//! connection to the backend is already used by other requests.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tollgate_wire::http1::{Fields, Length, ResponseHead};

use super::body::{Announced, Broken, Meter, Piece, PumpBroke, Rest, Source};
use super::spool::Overflow;
use super::timer::Timer;

/// A body of unknown length is a stream if its backend takes longer than [`STREAM_WAIT_MS`] and sends less than this on average: 16 kB/s. Its end may be
/// hours away, so buffering would not set the backend free.
const STREAM_BYTES_PER_MS: u64 = 16;
/// How long a backend may take before its body is judged by its rate. Pages are often computed for a while and then sent at once.
const STREAM_WAIT_MS: u64 = 1000;
/// How long a client may take no more before its response is buffered, rounded up to a tick of the timers. A client that keeps up is behind for microseconds at a
/// time, and a copy for each of them would cost more than the wait.
pub(crate) const GRACE: Duration = Duration::ZERO;
/// How often a download without room looks whether others have given some back.
const RETRY: Duration = Duration::from_millis(200);

/// The way to a client that may be slower than the backend.
pub(crate) trait Spill {
    /// Sends a piece of the body. The part that the client does not take now goes into `overflow`; waits while there is no room for it.
    async fn spill(&mut self, data: &[u8], rest: Rest, overflow: &mut Overflow<'_>) -> Result<(), Broken>;

    /// Ends the body, behind the content of `overflow`.
    fn spill_end(&mut self, trailers: Option<&Fields>, overflow: &mut Overflow<'_>) -> Result<(), Broken>;

    /// Sends what is held back, as fast as the client takes it. Ready when nothing is left.
    fn poll_drain(&mut self, cx: &mut Context<'_>, overflow: &mut Overflow<'_>) -> Poll<Result<(), Broken>>;
}

/// Whether buffering the response can set the backend free. It cannot for one that lasts as long as its client likes, and the backend may forbid it.
pub(crate) fn is_bufferable(response: &ResponseHead) -> bool {
    let media = response.fields.find(b"content-type").unwrap_or_default();
    let is_media = |name: &[u8]| media.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    let forbidden = response.fields.find(b"x-accel-buffering").is_some_and(|value| value.eq_ignore_ascii_case(b"no"));
    response.status != 101 && !forbidden && !is_media(b"text/event-stream") && !is_media(b"application/grpc")
}

/// How fast a body comes from its backend.
#[derive(Clone, Copy, Debug, Default)]
struct SourcePace {
    /// Time spent waiting for the backend. Waits for the client do not count.
    waited_ms: u64,
    bytes: u64,
}

impl SourcePace {
    /// Whether the body is a stream rather than a download.
    fn is_stream(&self) -> bool {
        self.waited_ms >= STREAM_WAIT_MS && self.bytes < self.waited_ms.saturating_mul(STREAM_BYTES_PER_MS)
    }
}

/// Reads a response from its backend to the end. `timer` tells the time.
pub(crate) async fn download(
    source: &mut impl Source,
    client: &mut impl Spill,
    meter: &mut impl Meter,
    overflow: &mut Overflow<'_>,
    length: Length,
    timer: &Timer,
) -> Result<(), PumpBroke> {
    let (is_of_unknown_length, is_bufferable) =
        (matches!(length, Length::Chunked | Length::UntilClose), !overflow.is_closed());
    let mut pace = SourcePace::default();
    let mut announced = Announced::by(length);
    loop {
        let mut next = pin!(source.next());
        let mut waits_since_ms = None;
        let piece = poll_fn(|cx| {
            if let Poll::Ready(piece) = next.as_mut().poll(cx) {
                return Poll::Ready(piece.map_err(PumpBroke::Source));
            }
            waits_since_ms.get_or_insert_with(|| timer.now_ms());
            match client.poll_drain(cx, overflow) {
                Poll::Ready(Err(broken)) => Poll::Ready(Err(PumpBroke::Sink(broken))),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        });
        let piece = piece.await?;
        pace.waited_ms += waits_since_ms.map_or(0, |since_ms| timer.now_ms() - since_ms);
        match piece {
            Piece::Data(data, rest) => {
                announced.take(data.len()).map_err(PumpBroke::Source)?;
                meter.fed(data.len());
                pace.bytes += data.len() as u64;
                if is_of_unknown_length && is_bufferable {
                    overflow.set_closed(pace.is_stream());
                }
                let waits_for_disk = overflow.waits_for_disk();
                let mut stall_count = overflow.stall_count();
                let mut spill = pin!(client.spill(data, rest, overflow));
                let mut is_stalled = false;
                let spilled = poll_fn(|cx| {
                    let polled = spill.as_mut().poll(cx);
                    if (polled.is_pending() && !waits_for_disk.get()) != is_stalled {
                        is_stalled = !is_stalled;
                        stall_count.set(is_stalled);
                        if is_stalled { meter.stalled() } else { meter.flowing() }
                    }
                    polled
                });
                spilled.await.map_err(PumpBroke::Sink)?;
                // Not before there is room for the last piece: without a permit there would be no bound on the responses that wait for some.
                if rest == Rest::End {
                    meter.source_done();
                }
            }
            Piece::End(trailers) => {
                announced.end().map_err(PumpBroke::Source)?;
                meter.source_done();
                client.spill_end(trailers, overflow).map_err(PumpBroke::Sink)?;
                // Most clients take all of it at once.
                return match poll_fn(|cx| Poll::Ready(client.poll_drain(cx, overflow))).await {
                    Poll::Ready(Err(broken)) => Err(PumpBroke::Sink(broken)),
                    Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
                };
            }
        }
    }
}

/// Sends what the client has not taken yet.
pub(crate) async fn finish(client: &mut impl Spill, overflow: &mut Overflow<'_>) -> Result<(), Broken> {
    poll_fn(|cx| client.poll_drain(cx, overflow)).await
}

/// Waits until there is room in a buffer that is not empty, and sends what it holds meanwhile.
pub(crate) async fn make_room(client: &mut impl Spill, overflow: &mut Overflow<'_>) -> Result<(), Broken> {
    loop {
        let room = poll_fn(|cx| match client.poll_drain(cx, overflow) {
            Poll::Pending if overflow.poll_room(cx) => Poll::Ready(Ok(())),
            polled => polled,
        });
        if let Ok(room) = tokio::time::timeout(RETRY, room).await {
            return room;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_trickles_is_a_stream_and_a_page_that_is_computed_first_is_not() {
        let is_stream = |waited_ms, bytes| SourcePace { waited_ms, bytes }.is_stream();
        assert!(!is_stream(999, 1), "too early to tell");
        assert!(is_stream(1000, 1));
        assert!(is_stream(3_600_000, 10_000_000), "three kilobytes a second");
        assert!(!is_stream(3_000, 64 * 1024), "the first piece after three seconds");
        assert!(!is_stream(3_600_000, 1 << 30));
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

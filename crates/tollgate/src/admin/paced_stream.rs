//! A connection to the admin address that fails if the client does not read responses fast enough.
//!
//! hyper waits without a bound for a client that does not read, and the admin address has few connections. Here a write
//! that makes no progress for [`STALL_MAX`] fails, and so does one to a client that has read less than
//! [`BYTES_PER_SEC_MIN`] on average over the time spent waiting for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::connections::Activity;

/// Longest wait for a client to accept more bytes.
const STALL_MAX: Duration = Duration::from_secs(10);
/// Lowest average rate, in bytes per second of waiting for the client.
const BYTES_PER_SEC_MIN: u64 = 4096;

/// A stream whose writes fail if the peer reads too slowly.
pub(super) struct PacedStream<S> {
    stream: S,
    /// Where each transferred byte is recorded.
    activity: Arc<Activity>,
    /// When the current write began to wait, and its timeout; `None` if no write waits.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Time that earlier writes spent waiting.
    waited: Duration,
    /// Bytes written so far.
    written: u64,
}

impl<S> PacedStream<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, waiting: None, waited: Duration::ZERO, written: 0 }
    }

    /// Longest wait of the next write. In total, writes may wait for [`STALL_MAX`], and for a second more for each
    /// [`BYTES_PER_SEC_MIN`] bytes written.
    fn patience(&self) -> Duration {
        let earned = Duration::from_millis(self.written.saturating_mul(1000) / BYTES_PER_SEC_MIN);
        STALL_MAX.min((STALL_MAX + earned).saturating_sub(self.waited))
    }

    /// Measures the wait of a write that was polled, and fails it if it has waited for too long.
    fn timed<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if let Some((since, _)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            return polled;
        }
        let patience = self.patience();
        let (_, over) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(patience))));
        over.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Records the bytes of a write that was polled.
    fn wrote(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(length)) = polled {
            self.written += length as u64;
            self.activity.moved();
        }
        self.timed(polled, cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, out);
        if out.filled().len() > before {
            self.activity.moved();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PacedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.timed(polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::AdminConnections;
    use super::*;

    #[test]
    fn the_patience_with_a_peer_depends_on_its_average_rate() {
        let activity =
            AdminConnections::enter(&Arc::default(), [203, 0, 113, 7].into(), Instant::now()).activity.clone();
        let mut paced_stream = PacedStream::new((), activity);
        let secs = Duration::from_secs;
        assert_eq!(paced_stream.patience(), STALL_MAX);
        // Ten bytes shortly before each timeout.
        (paced_stream.waited, paced_stream.written) = (secs(9), 10);
        assert!(paced_stream.patience() <= Duration::from_millis(1003), "{:?}", paced_stream.patience());
        (paced_stream.waited, paced_stream.written) = (secs(18), 20);
        assert_eq!(paced_stream.patience(), Duration::ZERO);
        // A fast peer has the full time, but no more.
        (paced_stream.waited, paced_stream.written) = (secs(100), 100 * BYTES_PER_SEC_MIN);
        assert_eq!(paced_stream.patience(), STALL_MAX);
        paced_stream.written *= 1000;
        assert_eq!(paced_stream.patience(), STALL_MAX);
    }
}

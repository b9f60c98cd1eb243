//! A connection of an operator that has to take what it is sent.
//!
//! hyper waits without end for a client that does not read. Here a write that makes no progress for [`STALL_MAX`] ends the connection, and so does
//! a client that takes less than [`BYTES_PER_SEC_MIN`] on average over the time that was spent waiting for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::connections::Activity;

/// The longest wait for a client to take the next bytes.
const STALL_MAX: Duration = Duration::from_secs(10);
/// What a client has to take on average, in bytes per second of waiting for it.
const BYTES_PER_SEC_MIN: u64 = 4096;

/// A stream that ends if its peer does not read.
pub(super) struct Paced<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Since when a write has waited, and until when it may.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Time spent in writes that waited.
    waited: Duration,
    written: u64,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, waiting: None, waited: Duration::ZERO, written: 0 }
    }

    /// How long the next write may wait.
    fn patience(&self) -> Duration {
        let earned = Duration::from_millis(self.written.saturating_mul(1000) / BYTES_PER_SEC_MIN);
        STALL_MAX.min((STALL_MAX + earned).saturating_sub(self.waited))
    }

    /// Ends a write that has waited for too long.
    fn timed<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if let Some((since, _)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            return polled;
        }
        let patience = self.patience();
        let (_, over) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(patience))));
        match over.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn wrote(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(length)) = polled {
            self.written += length as u64;
            self.activity.moved();
        }
        self.timed(polled, cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, out);
        if out.filled().len() > before {
            self.activity.moved();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
    fn a_peer_is_waited_for_as_long_as_it_keeps_up() {
        let activity =
            AdminConnections::enter(&Arc::default(), [203, 0, 113, 7].into(), Instant::now()).activity.clone();
        let mut paced = Paced::new((), activity);
        let secs = Duration::from_secs;
        assert_eq!(paced.patience(), STALL_MAX);
        // Ten bytes whenever the patience is about to end.
        (paced.waited, paced.written) = (secs(9), 10);
        assert!(paced.patience() <= Duration::from_millis(1003), "{:?}", paced.patience());
        (paced.waited, paced.written) = (secs(18), 20);
        assert_eq!(paced.patience(), Duration::ZERO);
        // A peer that takes enough is waited for, but never longer than the longest stall.
        (paced.waited, paced.written) = (secs(100), 100 * BYTES_PER_SEC_MIN);
        assert_eq!(paced.patience(), STALL_MAX);
        paced.written *= 1000;
        assert_eq!(paced.patience(), STALL_MAX);
    }
}

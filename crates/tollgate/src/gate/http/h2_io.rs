//! A [`Socket`] as the transport of the `h2` crate, for connections of clients and to backends. It counts the bytes in
//! both directions, and disconnects a peer that reads nothing for too long.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::Way;

/// A connection that carries HTTP/2.
pub(crate) struct H2Io {
    socket: Rc<Socket>,
    /// Bytes that were received before HTTP/2 was detected.
    read_ahead: ReadBuffer,
    /// The longest wait for the peer to accept the next bytes.
    patience: Duration,
    /// Whether the peer reads nothing at the moment.
    pub(crate) is_blocked: Rc<Cell<bool>>,
    /// Bytes that the peer has sent.
    pub(crate) received: Rc<Cell<u64>>,
    /// Bytes that were sent to the peer.
    pub(crate) written: Rc<Cell<u64>>,
}

impl H2Io {
    pub(crate) fn new(socket: Rc<Socket>, read_ahead: ReadBuffer, patience: Duration) -> Self {
        let (is_blocked, received, written) = Default::default();
        Self { socket, read_ahead, patience, is_blocked, received, written }
    }

    /// Counts written bytes.
    fn wrote(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(length)) = polled {
            self.written.set(self.written.get() + length as u64);
        }
        self.timed(polled, cx)
    }

    /// The result of a write. While it is pending, the peer reads nothing, and the deadline for that applies.
    fn timed<T>(&self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let timer = &self.socket.timer;
        if polled.is_ready() {
            self.is_blocked.set(false);
            timer.clear(Way::Out);
            return polled;
        }
        if !self.is_blocked.replace(true) {
            timer.set(Way::Out, self.patience);
        }
        if timer.is_over(Way::Out, cx) { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
    }
}

impl AsyncRead for H2Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let polled = if self.read_ahead.is_empty() {
            self.read_ahead.free_if_empty();
            self.socket.poll_read_into(cx, out)
        } else {
            let length = self.read_ahead.bytes().len().min(out.remaining());
            out.put_slice(&self.read_ahead.bytes()[..length]);
            self.read_ahead.consume(length);
            Poll::Ready(Ok(()))
        };
        self.received.set(self.received.get() + (out.filled().len() - before) as u64);
        polled
    }
}

impl AsyncWrite for H2Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.socket.poll_write(cx, &[io::IoSlice::new(bytes)]);
        self.wrote(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = self.socket.poll_write(cx, parts);
        self.wrote(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.socket.poll_flush(cx);
        self.timed(polled, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.socket.poll_shutdown(cx);
        self.timed(polled, cx)
    }
}

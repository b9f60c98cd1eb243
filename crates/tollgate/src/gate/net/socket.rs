//! A connection to a client or a backend, plain or TLS, with a deadline for each direction.
//!
//! One task reads and writes it at the same time, so all methods take `&self`. A method that waits fails with
//! `TimedOut` when the deadline of its direction passes. The caller sets the deadlines in [`Socket::timer`], except
//! for [`Socket::write_all`] and [`Socket::write_paced`], which set the deadline for writing.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::buffer::ReadBuffer;
use super::pace::{Pace, PaceMeter};
use super::timer::{Timer, Way};

/// The transport of a connection.
pub(crate) enum Transport {
    Plain(TcpStream),
    ServerTls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    ClientTls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Transport {
    fn pinned(&mut self) -> Pin<&mut dyn Duplex> {
        let stream: &mut dyn Duplex = match self {
            Self::Plain(stream) => stream,
            Self::ServerTls(stream) => stream.as_mut(),
            Self::ClientTls(stream) => stream.as_mut(),
        };
        Pin::new(stream)
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::ServerTls(stream) => stream.get_ref().0,
            Self::ClientTls(stream) => stream.get_ref().0,
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A connection with deadlines. The transport is borrowed only while it is polled.
pub(crate) struct Socket {
    stream: RefCell<Transport>,
    /// The deadlines of both directions.
    pub(crate) timer: Timer,
}

impl Socket {
    pub(crate) fn new(stream: Transport, timer: Timer) -> Self {
        Self { stream: RefCell::new(stream), timer }
    }

    /// Reads available bytes into the buffer; 0 at the end of the stream.
    pub(crate) async fn read(&self, buffer: &mut ReadBuffer) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    /// Like [`Self::read`], for a message of which a part has arrived. While this waits, memory that the buffer hardly
    /// uses is freed ([`ReadBuffer::compact`]).
    pub(crate) async fn read_compact(&self, buffer: &mut ReadBuffer) -> io::Result<usize> {
        let read = std::future::poll_fn(|cx| {
            let polled = self.poll_read(cx, buffer);
            if polled.is_pending() {
                buffer.compact();
            }
            polled
        });
        read.await
    }

    /// Reads available bytes; 0 at the end of the stream. The buffer must not be full, because 0 bytes would be read,
    /// too. An empty buffer has no memory while this waits.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuffer) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(buffer.room());
        // A plain connection needs no dynamic dispatch.
        let polled = match &mut *self.stream.borrow_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, &mut room),
            stream => stream.pinned().poll_read(cx, &mut room),
        };
        let polled = polled.map_ok(|()| room.filled().len());
        match &polled {
            Poll::Ready(Ok(length)) => buffer.filled(*length),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => buffer.free_if_empty(),
        }
        self.or_timeout(polled, Way::In, cx)
    }

    /// Reads available bytes into memory of the caller.
    pub(crate) fn poll_read_into(&self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.borrow_mut().pinned().poll_read(cx, out);
        self.or_timeout(polled, Way::In, cx)
    }

    /// Writes all parts in order. Fails if the peer accepts no byte for `patience`.
    pub(crate) async fn write_all(&self, parts: &mut [IoSlice<'_>], patience: Duration) -> io::Result<()> {
        let mut meter = PaceMeter::new(Pace::without_rate(patience));
        self.write_paced(parts, &mut meter).await
    }

    /// Writes all parts in order. Fails if the peer reads more slowly than `meter` permits.
    pub(crate) async fn write_paced(&self, parts: &mut [IoSlice<'_>], meter: &mut PaceMeter) -> io::Result<()> {
        let mut left = parts;
        // Removes empty parts at the start, because a write of 0 bytes counts as a failure.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let began_ms = self.timer.now_ms();
            self.timer.set(Way::Out, meter.patience());
            let written = std::future::poll_fn(|cx| self.poll_write(cx, left)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            meter.moved(written as u64, self.timer.now_ms() - began_ms);
            IoSlice::advance_slices(&mut left, written);
        }
        // TLS may still have buffered bytes. The wait for them counts, too.
        let began_ms = self.timer.now_ms();
        self.timer.set(Way::Out, meter.patience());
        std::future::poll_fn(|cx| self.poll_flush(cx)).await?;
        meter.moved(0, self.timer.now_ms() - began_ms);
        self.timer.clear(Way::Out);
        Ok(())
    }

    /// Writes some of the parts.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = match (&mut *self.stream.borrow_mut(), parts) {
            (Transport::Plain(stream), [part]) => Pin::new(stream).poll_write(cx, part),
            (Transport::Plain(stream), parts) => Pin::new(stream).poll_write_vectored(cx, parts),
            (stream, parts) => stream.pinned().poll_write_vectored(cx, parts),
        };
        self.or_timeout(polled, Way::Out, cx)
    }

    /// Sends bytes that TLS has buffered.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = match &mut *self.stream.borrow_mut() {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            stream => stream.pinned().poll_flush(cx),
        };
        self.or_timeout(polled, Way::Out, cx)
    }

    /// Closes the connection for writing; with TLS, after a `close_notify`.
    pub(crate) async fn shutdown(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.borrow_mut().pinned().poll_shutdown(cx);
        self.or_timeout(polled, Way::Out, cx)
    }

    /// Whether the peer has sent something or closed, on a connection that should be idle.
    ///
    /// This checks the events that the runtime has received, so it costs no system call.
    pub(crate) fn has_stirred(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.stream.borrow().tcp().poll_read_ready(&mut cx).is_ready()
    }

    /// Whether the peer has closed its side, even if unread bytes come before that.
    ///
    /// Like [`Self::has_stirred`], it costs no system call. The close can be reported later than the bytes.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let stream = self.stream.borrow();
        // The close is part of each interest in reading. This one leaves out readability, which is not needed.
        let mut ready = pin!(stream.tcp().ready(Interest::PRIORITY));
        match ready.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(ready)) => ready.is_read_closed(),
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        }
    }

    /// Whether TLS negotiated HTTP/2.
    pub(crate) fn speaks_h2(&self) -> bool {
        let protocol = |alpn: Option<&[u8]>| alpn == Some(b"h2");
        match &*self.stream.borrow() {
            Transport::Plain(_) => false,
            Transport::ServerTls(stream) => protocol(stream.get_ref().1.alpn_protocol()),
            Transport::ClientTls(stream) => protocol(stream.get_ref().1.alpn_protocol()),
        }
    }

    /// The result of a poll. A pending one becomes an error if the deadline of this direction has passed (`TimedOut`),
    /// or if an idle connection was chosen to make room for another one (`ConnectionAborted`).
    fn or_timeout<T>(&self, polled: Poll<io::Result<T>>, way: Way, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            polled
        } else if self.timer.is_over(way, cx) {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        } else if way == Way::In && self.timer.is_closing() {
            Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
        } else {
            Poll::Pending
        }
    }
}

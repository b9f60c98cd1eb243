//! Reads and writes of a connection that carries one call after the other, for the HTTP door and the RESP door.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Minimum size of a read, in bytes.
pub(super) const READ_BYTES: usize = 4 << 10;
/// Maximum space that is reserved for a read, in bytes.
const READ_BYTES_MAX: usize = 64 << 10;
/// Timeout for a client to read its responses.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// Timeout for closing a connection.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Received bytes that are not processed yet.
#[derive(Default)]
pub(super) struct InputBuffer {
    bytes: Vec<u8>,
}

impl InputBuffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads more bytes into the buffer, with space for at least as many as it has, from [`READ_BYTES`] to
    /// [`READ_BYTES_MAX`]. The caller bounds the total by the length of a call. Nothing is lost if the future is
    /// dropped.
    pub(super) async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.bytes.reserve(self.bytes.len().clamp(READ_BYTES, READ_BYTES_MAX));
        stream.read_buf(&mut self.bytes).await
    }

    /// Removes the first `count` bytes, which are processed.
    pub(super) fn consume(&mut self, count: usize) {
        self.bytes.drain(..count);
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * READ_BYTES {
            self.bytes = Vec::new();
        }
    }
}

/// Lets the other connections of the thread answer the calls that have arrived before any response is sent, as Redis
/// does. A client with many connections is then woken once for many responses; to wake it costs more than a decision.
///
/// `yield_now` of tokio would ask the kernel for new events first, each time.
pub(super) async fn gather_responses() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends these bytes and empties the buffer.
pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>) -> io::Result<()> {
    let sent = {
        let mut sending = pin!(async {
            stream.write_all(out).await?;
            stream.flush().await
        });
        // The first attempt needs no timer: usually the bytes fit into the buffer of the socket.
        match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
            Poll::Ready(sent) => sent,
            Poll::Pending => {
                let sent = Box::pin(tokio::time::timeout(WRITE_MAX, sending)).await;
                sent.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    };
    out.clear();
    out.shrink_to(READ_BYTES);
    sent
}

/// Closes the connection for writing. A TLS client that reads the end of the stream expects a closing message.
pub(super) async fn shut_down(stream: &mut (impl AsyncWrite + Unpin)) {
    let _ = tokio::time::timeout(CLOSE_MAX, stream.shutdown()).await;
}

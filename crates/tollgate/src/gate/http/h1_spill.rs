//! HTTP/1.1 responses to clients that may be slower than the backend: implements [`Spill`] for [`BodyWriter`]. Bytes
//! that the client does not read in time go into an [`Overflow`], as they are to be sent, chunk sizes included.

use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use tollgate_wire::http1::{Fields, Length, chunked};

use super::body::{PeerError, Rest};
use super::download::{Spill, make_room, without_room};
use super::h1_body::{BodyWriter, COPY_MAX, KEEP_MAX};
use super::spool::Overflow;
use crate::gate::net::timer::Way;

impl BodyWriter<'_> {
    /// Sends the unsent bytes, a piece of the body, and the bytes after it. The remainder goes into `overflow`, and if
    /// that is full, this waits. `is_last`: the piece is the last one of the response.
    async fn write_or_spill(
        &mut self,
        data: &[u8],
        after: &[u8],
        is_last: bool,
        overflow: &mut Overflow<'_>,
    ) -> Result<(), PeerError> {
        let mut out = std::mem::take(self.out);
        let mut parts = [IoSlice::new(&out), IoSlice::new(data), IoSlice::new(after)];
        let mut left = &mut parts[..];
        IoSlice::advance_slices(&mut left, 0);
        // The last piece gets no grace, because the permit is released once it is sent or buffered. Neither does a
        // stream: its `overflow` is closed, so it is not buffered in any case.
        let has_grace = !is_last && !overflow.is_closed;
        while !left.is_empty() && overflow.is_empty() {
            let began_ms = self.socket.timer.now_ms();
            self.socket.timer.clear(Way::Out);
            let written = self.grace.wait(has_grace, |cx| self.socket.poll_write(cx, left)).await;
            self.waits_since_ms.get_or_insert(began_ms);
            let Some(written) = written else {
                // From here on the client has its usual deadline.
                self.end_wait(0);
                break;
            };
            let written = written?;
            if written == 0 {
                return Err(PeerError::Gone);
            }
            self.end_wait(written);
            self.grace.took(written as u64);
            IoSlice::advance_slices(&mut left, written);
        }
        while !left.is_empty() {
            let mut rest: &[u8] = &left[0];
            overflow.append(&mut rest, is_last);
            let taken = left[0].len() - rest.len();
            IoSlice::advance_slices(&mut left, taken);
            if left.is_empty() || taken > 0 {
                continue;
            }
            overflow.note_full();
            if overflow.is_empty() {
                without_room(self.socket.write_paced(left, &mut self.meter), overflow).await?;
                break;
            }
            // In a box, so that downloads that need no room do not carry it.
            Box::pin(make_room(self, overflow)).await?;
        }
        out.clear();
        *self.out = out;
        Ok(())
    }

    /// Starts a wait for the client to read, unless there is one.
    fn begin_wait(&mut self) {
        if self.waits_since_ms.is_none() {
            self.waits_since_ms = Some(self.socket.timer.now_ms());
            self.socket.timer.set(Way::Out, self.meter.patience());
        }
    }

    /// Ends the wait for the client, which has read this many bytes.
    fn end_wait(&mut self, taken: usize) {
        let waited_ms = match self.waits_since_ms.take() {
            Some(since_ms) => self.socket.timer.now_ms() - since_ms,
            None => 0,
        };
        self.meter.moved(taken as u64, waited_ms);
        self.socket.timer.clear(Way::Out);
    }
}

impl Spill for BodyWriter<'_> {
    async fn spill(&mut self, data: &[u8], rest: Rest, overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
        if self.length == Length::Empty {
            return Ok(());
        }
        let (after, is_last) = (self.begin_piece(data.len()), rest == Rest::End);
        if data.len() > COPY_MAX || !overflow.is_empty() {
            return self.write_or_spill(data, after, is_last, overflow).await;
        }
        self.out.extend_from_slice(data);
        self.out.extend_from_slice(after);
        if rest == Rest::ToCome || self.out.len() > KEEP_MAX {
            self.write_or_spill(&[], &[], is_last, overflow).await
        } else {
            Ok(())
        }
    }

    fn spill_end(&mut self, trailers: Option<&Fields>, overflow: &mut Overflow<'_>) -> Result<(), PeerError> {
        if self.length == Length::Chunked {
            chunked::write_end(self.out, trailers);
        }
        if !overflow.is_empty() {
            overflow.append_end(self.out);
            self.out.clear();
        }
        Ok(())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>, overflow: &mut Overflow<'_>) -> Poll<Result<(), PeerError>> {
        loop {
            let written = if overflow.is_empty() {
                if self.out.is_empty() {
                    break;
                }
                self.begin_wait();
                let written = ready!(self.socket.poll_write(cx, &[IoSlice::new(self.out)]))?;
                self.out.drain(..written);
                written
            } else {
                let Poll::Ready(first) = overflow.poll_first(cx)? else {
                    // The gate waits for the disk, not for the client.
                    self.end_wait(0);
                    return Poll::Pending;
                };
                self.begin_wait();
                let first = first.unwrap_or_default();
                let written = ready!(self.socket.poll_write(cx, &[IoSlice::new(first)]))?;
                overflow.consume(written);
                written
            };
            if written == 0 {
                return Poll::Ready(Err(PeerError::Gone));
            }
            self.end_wait(written);
        }
        self.begin_wait();
        ready!(self.socket.poll_flush(cx))?;
        self.end_wait(0);
        Poll::Ready(Ok(()))
    }
}

//! Bodies of HTTP/1.1, read from and written to a [`Socket`], on both sides of the gate: [`BodyReader`] reads requests
//! of clients and responses of backends, [`BodyWriter`] writes them to the other side.

use std::io::IoSlice;
use std::time::Duration;

use tollgate_wire::http1::chunked::{self, Decoder, Step};
use tollgate_wire::http1::{Fields, Length};

use super::body::{PeerError, Piece, Rest, Sink, Source};
use super::download::Grace;
use super::halves::{ClientBody, GATHERED_MAX, UNSURE_MAX};
use crate::gate::decide::flow::PAUSE_MAX;
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::pace::{Pace, PaceMeter};
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::Way;

/// Pieces of up to this many bytes are copied behind the unsent bytes, instead of being sent without a copy.
pub(crate) const COPY_MAX: usize = 4 * 1024;
/// Unsent bytes that are kept to be sent together with the next piece, if that follows at once. More are sent at once.
pub(crate) const KEEP_MAX: usize = 16 * 1024;

/// An estimate of the memory of a waiting request's task and buffers, in bytes.
const WAITING_TASK_BYTES: usize = 4096;

const MALFORMED_CHUNKS: PeerError = PeerError::Malformed("the chunks of the body are malformed");

/// The interval of checks whether a client is still there, while its unread bytes fill the buffer.
const DEPARTURE_CHECK: Duration = Duration::from_millis(100);

/// Reads one body from a connection.
pub(crate) struct BodyReader<'a> {
    socket: &'a Socket,
    /// Received bytes, from those of the last piece on.
    pub(crate) buffer: &'a mut ReadBuffer,
    decoder: &'a mut Decoder,
    /// The framing of the body; of a fixed length, the part that was not returned yet.
    length: Length,
    meter: PaceMeter,
    /// Bytes at the start of the buffer that were returned with the last piece.
    lent: usize,
    /// Whether the whole body has been returned.
    ended: bool,
}

impl<'a> BodyReader<'a> {
    pub(crate) fn new(
        socket: &'a Socket,
        buffer: &'a mut ReadBuffer,
        decoder: &'a mut Decoder,
        length: Length,
        pace: Pace,
    ) -> Self {
        decoder.reset();
        let ended = matches!(length, Length::Empty | Length::Fixed(0));
        Self { socket, buffer, decoder, length, meter: PaceMeter::new(pace), lent: 0, ended }
    }

    /// Buffers a body with a known length. Returns true.
    async fn gather_fixed(&mut self, length: u64) -> Result<bool, PeerError> {
        while (self.buffer.bytes().len() as u64) < length {
            if self.fill(true).await? == 0 {
                return Err(PeerError::Gone);
            }
        }
        Ok(true)
    }

    /// Buffers chunks until they end. Returns false if they exceed `bytes_max` or pause for `pause_max`. Uses a decoder
    /// of its own, because the bytes are decoded again when they are forwarded.
    async fn gather_chunks(&mut self, bytes_max: usize, pause_max: Duration) -> Result<bool, PeerError> {
        let (mut scout, mut seen) = (Decoder::default(), 0);
        loop {
            match scout.decode(&self.buffer.bytes()[seen..]) {
                Ok(Step::End(_)) => return Ok(true),
                Ok(Step::Data(range)) => seen += range.end,
                Ok(Step::More(used)) => seen += used,
                Err(chunked::Malformed) => return Err(MALFORMED_CHUNKS),
            }
            if seen > bytes_max {
                return Ok(false);
            }
            if seen == self.buffer.bytes().len() {
                match tokio::time::timeout(pause_max, self.fill(false)).await {
                    Ok(Ok(1..)) => {}
                    Ok(Ok(0)) => return Err(PeerError::Gone),
                    Ok(Err(broken)) => return Err(broken),
                    Err(_) => return Ok(false),
                }
            }
        }
    }

    /// Reads more bytes of a head, within the deadline that is set.
    pub(crate) async fn read_more(&mut self) -> Result<usize, PeerError> {
        if self.buffer.is_full() {
            return Err(PeerError::Malformed("more than fits"));
        }
        Ok(self.socket.read(self.buffer).await?)
    }

    /// Starts the body that follows the head of a response.
    pub(crate) fn begin(&mut self, length: Length) {
        self.decoder.reset();
        self.length = length;
        self.ended = matches!(length, Length::Empty | Length::Fixed(0));
        self.meter.reset();
    }

    /// Removes the bytes of the last piece, so that the buffer starts with unread ones.
    pub(crate) fn give_back(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        self.buffer.consume(lent);
    }

    /// Reads more of the body. With `is_small`, memory that the buffer hardly uses is freed while this waits.
    async fn fill(&mut self, is_small: bool) -> Result<usize, PeerError> {
        let (socket, began_ms) = (self.socket, self.socket.timer.now_ms());
        socket.timer.set(Way::In, self.meter.patience());
        let length = if is_small { socket.read_compact(self.buffer).await? } else { socket.read(self.buffer).await? };
        self.meter.moved(length as u64, socket.timer.now_ms() - began_ms);
        Ok(length)
    }

    /// Finds the next piece in the buffer: its range, and what follows it. None if there is none; then the body may
    /// have ended.
    fn step(&mut self) -> Result<Option<(std::ops::Range<usize>, Rest)>, PeerError> {
        let at_hand = self.buffer.bytes().len();
        match &mut self.length {
            Length::Fixed(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(at_hand);
                *left -= length as u64;
                self.ended = *left == 0;
                Ok((length > 0).then_some((0..length, if self.ended { Rest::End } else { Rest::ToCome })))
            }
            Length::UntilClose => Ok((at_hand > 0).then_some((0..at_hand, Rest::ToCome))),
            Length::Chunked => match self.decoder.decode(self.buffer.bytes()) {
                Ok(Step::Data(range)) => {
                    let rest = if range.end < at_hand { Rest::AtHand } else { Rest::ToCome };
                    Ok(Some((range, rest)))
                }
                Ok(Step::More(used)) => {
                    self.buffer.consume(used);
                    Ok(None)
                }
                Ok(Step::End(used)) => {
                    self.buffer.consume(used);
                    self.ended = true;
                    Ok(None)
                }
                Err(chunked::Malformed) => Err(MALFORMED_CHUNKS),
            },
            Length::Empty => Ok(None),
        }
    }
}

impl ClientBody for BodyReader<'_> {
    /// The argument `_length` is not needed, because the reader has its own.
    async fn gather(&mut self, _length: Length, is_awaited: bool) -> Result<bool, PeerError> {
        // In any case, the wait ends when the client is slower than its minimum rate.
        let (pause_max, unsure_max) = if is_awaited { (Duration::MAX, Duration::MAX) } else { (PAUSE_MAX, UNSURE_MAX) };
        self.give_back();
        let whole = match self.length {
            Length::Fixed(left) => left <= GATHERED_MAX as u64 && self.gather_fixed(left).await?,
            Length::Chunked => {
                let gathered = tokio::time::timeout(unsure_max, self.gather_chunks(GATHERED_MAX, pause_max)).await;
                gathered.unwrap_or(Ok(false))?
            }
            Length::Empty | Length::UntilClose => self.ended,
        };
        self.socket.timer.clear(Way::In);
        Ok(whole)
    }

    /// The body that was gathered, decoded.
    fn gathered(&self) -> Vec<u8> {
        let bytes = self.buffer.bytes();
        match self.length {
            Length::Fixed(length) => bytes[..bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX))].to_vec(),
            Length::Chunked => {
                let (mut scout, mut seen, mut body) = (Decoder::default(), 0, Vec::new());
                loop {
                    match scout.decode(&bytes[seen..]) {
                        Ok(Step::Data(range)) => {
                            body.extend_from_slice(&bytes[seen + range.start..seen + range.end]);
                            seen += range.end;
                        }
                        Ok(Step::More(used)) if used > 0 => seen += used,
                        _ => return body,
                    }
                }
            }
            Length::Empty | Length::UntilClose => Vec::new(),
        }
    }

    fn buffered_bytes(&self) -> usize {
        self.buffer.bytes().len()
    }

    fn task_bytes(&self) -> usize {
        WAITING_TASK_BYTES
    }

    /// Waits until the client leaves. Bytes that come in the meantime stay in the buffer: the rest of the body, or the
    /// next request.
    async fn departure(&mut self) -> PeerError {
        self.give_back();
        self.socket.timer.clear(Way::In);
        loop {
            if self.buffer.is_full() {
                // Nothing more can be read, and an event cannot be awaited while bytes are unread.
                while !self.socket.is_closed_by_peer() {
                    tokio::time::sleep(DEPARTURE_CHECK).await;
                }
                return PeerError::Gone;
            }
            match self.socket.read(self.buffer).await {
                Ok(0) | Err(_) => return PeerError::Gone,
                Ok(_) => {}
            }
        }
    }

    /// Whether the whole body has been read, so that the next bytes belong to another message.
    fn has_ended(&self) -> bool {
        self.ended
    }
}

impl Source for BodyReader<'_> {
    async fn next(&mut self) -> Result<Piece<'_>, PeerError> {
        self.give_back();
        loop {
            if self.ended {
                self.socket.timer.clear(Way::In);
                let trailers = self.decoder.trailers();
                return Ok(Piece::End((!trailers.is_empty()).then_some(trailers)));
            }
            if let Some((range, rest)) = self.step()? {
                self.lent = range.end;
                return Ok(Piece::Data(&self.buffer.bytes()[range], rest));
            }
            if self.ended {
                continue;
            }
            if self.fill(false).await? == 0 {
                if self.length != Length::UntilClose {
                    return Err(PeerError::Gone);
                }
                self.ended = true;
            }
        }
    }
}

/// Writes one body to a connection, after a head that may be unsent in `out`.
pub(crate) struct BodyWriter<'a> {
    pub(crate) socket: &'a Socket,
    /// Bytes that are not sent yet.
    pub(crate) out: &'a mut Vec<u8>,
    /// The framing of the body.
    pub(crate) length: Length,
    pub(crate) meter: PaceMeter,
    /// The start of the wait for the peer while buffered bytes are sent.
    pub(crate) waits_since_ms: Option<u64>,
    /// The time for which the gate waits for the client before it buffers the response.
    pub(crate) grace: Grace,
    /// Bytes of the body that were sent or buffered, without chunk sizes.
    pub(crate) body_bytes: u64,
}

impl<'a> BodyWriter<'a> {
    /// `pace`: the minimum rate at which the peer must read the body.
    pub(crate) fn new(socket: &'a Socket, out: &'a mut Vec<u8>, length: Length, pace: Pace) -> Self {
        let (meter, waits_since_ms, grace) = (PaceMeter::new(pace), None, Grace::new());
        Self { socket, out, length, meter, waits_since_ms, grace, body_bytes: 0 }
    }

    /// Counts a piece of the body. If the body is chunked, writes the size of the chunk behind the unsent bytes.
    /// Returns the bytes to send after the piece.
    pub(crate) fn begin_piece(&mut self, length: usize) -> &'static [u8] {
        self.body_bytes += length as u64;
        if self.length != Length::Chunked {
            return b"";
        }
        chunked::write_size(self.out, length);
        b"\r\n"
    }

    /// Sends the unsent bytes, then a piece of the body and the bytes after it.
    async fn write(&mut self, data: &[u8], after: &[u8]) -> Result<(), PeerError> {
        let mut parts = [IoSlice::new(self.out), IoSlice::new(data), IoSlice::new(after)];
        let written = match (data.is_empty(), after.is_empty()) {
            (true, _) => self.socket.write_paced(&mut parts[..1], &mut self.meter).await,
            (false, true) => self.socket.write_paced(&mut parts[..2], &mut self.meter).await,
            (false, false) => self.socket.write_paced(&mut parts, &mut self.meter).await,
        };
        self.out.clear();
        Ok(written?)
    }
}

impl Sink for BodyWriter<'_> {
    async fn send(&mut self, data: &[u8], rest: Rest) -> Result<(), PeerError> {
        if self.length == Length::Empty {
            return Ok(());
        }
        let after = self.begin_piece(data.len());
        if data.len() > COPY_MAX {
            return self.write(data, after).await;
        }
        self.out.extend_from_slice(data);
        self.out.extend_from_slice(after);
        if rest == Rest::ToCome || self.out.len() > KEEP_MAX { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), PeerError> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.write(&[], &[]).await
    }

    async fn end(&mut self, trailers: Option<&Fields>) -> Result<(), PeerError> {
        if self.length == Length::Chunked {
            chunked::write_end(self.out, trailers);
        }
        self.flush().await
    }
}

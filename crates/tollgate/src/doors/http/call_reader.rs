//! Reads one call (a request to the HTTP door) after the other from a connection.

use std::future::pending;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tollgate_wire::http1::chunked::{Decoder, Step};
use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Fault, Length, RequestHead};

use super::problem::DoorProblem;
use crate::doors::buffer::{InputBuffer, READ_BYTES, shut_down};

/// Maximum size of the head of a call, and of its first line, in bytes.
const BOUNDS: Bounds = Bounds { line_bytes_max: 32 << 10, head_bytes_max: 32 << 10 };
/// Maximum size of the body of a call, in bytes: enough for a few hundred checks.
const BODY_BYTES_MAX: usize = 128 << 10;
/// Timeout for receiving the body of a call.
const BODY_WAIT_MAX: Duration = Duration::from_secs(10);
/// When the door closes a connection, it first reads what the client still sends, for at most this time. Closing with
/// unread bytes resets the connection, and the client may lose the response.
const LINGER_MAX: Duration = Duration::from_secs(2);
/// The most bytes that are read for this.
const LINGER_BYTES_MAX: usize = 256 << 10;

/// The state of reading a connection. The memory is reused for the next call.
#[derive(Default)]
pub(super) struct CallReader {
    pub(super) input: InputBuffer,
    pub(super) head: RequestHead,
    pub(super) body: Vec<u8>,
    /// Finds the end of the head.
    scan: Scan,
    /// Decodes a chunked body.
    decoder: Decoder,
    has_ended: bool,
}

impl CallReader {
    /// Reads the head of the next call into `head`. None if the client has closed the connection. Nothing is lost if
    /// the future is dropped.
    pub(super) async fn read_head(
        &mut self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Option<Result<(), Fault>> {
        self.has_ended = false;
        loop {
            match self.scan.look(self.input.bytes(), BOUNDS, true) {
                Ok(Some(head)) => return Some(self.parse_head(head)),
                Ok(None) => {}
                Err(fault) => {
                    self.head.clear();
                    return Some(Err(fault));
                }
            }
            if !matches!(self.input.read(stream).await, Ok(1..)) {
                return None;
            }
        }
    }

    fn parse_head(&mut self, head: Range<usize>) -> Result<(), Fault> {
        self.scan = Scan::default();
        let end = head.end;
        let parsed = self.head.parse(&self.input.bytes()[head]);
        self.input.consume(end);
        match parsed {
            Ok(()) => self.has_ended = matches!(self.head.length, Length::Empty | Length::Fixed(0)),
            Err(_) => self.head.clear(),
        }
        self.body.clear();
        self.body.shrink_to(READ_BYTES);
        parsed
    }

    /// Whether the call was read to its end, so that the next one can follow.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads the body of the call.
    pub(super) async fn read_body(
        &mut self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), DoorProblem> {
        if matches!(self.head.length, Length::Fixed(length) if length > BODY_BYTES_MAX as u64) {
            return Err(DoorProblem::too_large());
        }
        self.decoder.reset();
        if !self.take_body()? {
            // In a box, so that calls that arrive at once do not carry the memory for the timer.
            let rest = Box::pin(timeout(BODY_WAIT_MAX, self.read_rest(stream)));
            rest.await.map_err(|_| DoorProblem::new(408, "the body did not arrive within 10 s"))??;
        }
        self.has_ended = true;
        Ok(())
    }

    async fn read_rest(&mut self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<(), DoorProblem> {
        let incomplete = || DoorProblem::malformed("the body is incomplete");
        if self.head.expects_continue() {
            let sent = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
            sent.and(stream.flush().await).map_err(|_| incomplete())?;
        }
        loop {
            if !matches!(self.input.read(stream).await, Ok(1..)) {
                return Err(incomplete());
            }
            if self.take_body()? {
                return Ok(());
            }
        }
    }

    /// Moves the received part of the body out of the buffer. Returns whether the body is complete.
    fn take_body(&mut self) -> Result<bool, DoorProblem> {
        match self.head.length {
            Length::Fixed(length) => {
                let missing = usize::try_from(length).unwrap_or(usize::MAX) - self.body.len();
                let count = missing.min(self.input.bytes().len());
                self.body.extend_from_slice(&self.input.bytes()[..count]);
                self.input.consume(count);
                Ok(count == missing)
            }
            Length::Chunked => self.take_chunks(),
            Length::Empty | Length::UntilClose => Ok(true),
        }
    }

    fn take_chunks(&mut self) -> Result<bool, DoorProblem> {
        loop {
            let step = self.decoder.decode(self.input.bytes());
            let (used, ended) =
                match step.map_err(|_| DoorProblem::malformed("the body is not chunked as announced"))? {
                    Step::Data(range) if self.body.len() + range.len() > BODY_BYTES_MAX => {
                        return Err(DoorProblem::too_large());
                    }
                    Step::Data(range) => {
                        self.body.extend_from_slice(&self.input.bytes()[range.clone()]);
                        (range.end, None)
                    }
                    Step::More(used) => (used, Some(false)),
                    Step::End(used) => (used, Some(true)),
                };
            self.input.consume(used);
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// Closes the connection, and gives the client time to read the last response.
    pub(super) async fn linger(&mut self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
        shut_down(stream).await;
        let discard = async {
            let mut left = LINGER_BYTES_MAX;
            loop {
                self.input.consume(self.input.bytes().len());
                match self.input.read(stream).await {
                    Ok(length @ 1..) if length <= left => left -= length,
                    _ => return,
                }
            }
        };
        let _ = timeout(LINGER_MAX, discard).await;
    }
}

/// Waits until the client closes the connection. Calls that it sends in advance stay in the buffer; once the buffer is
/// full, this never returns.
pub(super) async fn client_left(stream: &mut (impl AsyncRead + Unpin), input: &mut InputBuffer) {
    while input.bytes().len() < READ_BYTES {
        if !matches!(input.read(stream).await, Ok(1..)) {
            return;
        }
    }
    pending().await
}

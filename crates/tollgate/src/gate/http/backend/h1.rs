//! Requests to a backend over HTTP/1.1: its connections, the heads of its responses, and requests that break off.
//! Bodies are in `h1_body`.

use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Length, ResponseHead};

use crate::gate::http::body::{PeerError, Piece, Source};
use crate::gate::http::h1_body::{BodyReader, BodyWriter};
use crate::gate::http::halves::{BackendAnswer, ClientBody as _, Forward};
use crate::gate::net::buffer::{LARGE, ReadBuffer};
use crate::gate::net::pace::Pace;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::Way;

/// The largest head of a response, in bytes.
const HEAD_BOUNDS: Bounds = Bounds { line_bytes_max: 8 * 1024, head_bytes_max: LARGE - 1 };

/// A connection to a backend.
pub(crate) struct H1Connection {
    pub(crate) socket: Socket,
    pub(crate) buffer: ReadBuffer,
    /// Whether it has served a request before: then the backend may have closed it.
    pub(crate) used: bool,
}

/// The response to one request. It has heads (interim ones and the final one), then a body.
pub(crate) struct H1Answer<'a> {
    body: BodyReader<'a>,
    /// Finds the end of the next head.
    scan: Scan,
    /// Whether it responds to a HEAD.
    to_head: bool,
    progress: Progress,
}

/// The part of a response that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No byte has come.
    Awaited,
    /// A part of the head, or an interim response.
    Begun,
    /// The head of the final response.
    HeadRead {
        /// Whether the connection can be used again once the body is read.
        reusable: bool,
    },
}

impl<'a> H1Answer<'a> {
    pub(crate) fn new(
        socket: &'a Socket,
        buffer: &'a mut ReadBuffer,
        decoder: &'a mut Decoder,
        pace: Pace,
        to_head: bool,
    ) -> Self {
        let body = BodyReader::new(socket, buffer, decoder, Length::Empty, pace);
        Self { body, scan: Scan::default(), to_head, progress: Progress::Awaited }
    }

    /// Whether the connection can serve another request: the response is complete, and nothing follows it.
    pub(crate) fn leaves_connection_reusable(&mut self) -> bool {
        self.body.give_back();
        self.progress == Progress::HeadRead { reusable: true } && self.body.has_ended() && self.body.buffer.is_empty()
    }
}

impl BackendAnswer for H1Answer<'_> {
    async fn head(&mut self, head: &mut ResponseHead) -> Result<(), PeerError> {
        let end = loop {
            match self.scan.look(self.body.buffer.bytes(), HEAD_BOUNDS, false) {
                Ok(Some(found)) => {
                    let end = found.end;
                    head.parse(&self.body.buffer.bytes()[found], self.to_head)
                        .map_err(|garbage| PeerError::Malformed(garbage.0))?;
                    break end;
                }
                Ok(None) => {}
                Err(_) => return Err(PeerError::Malformed("the head of the answer is too large")),
            }
            if self.body.read_more().await? == 0 {
                return Err(PeerError::Gone);
            }
            self.progress = Progress::Begun;
        };
        self.body.buffer.consume(end);
        self.scan = Scan::default();
        if !head.is_interim() {
            self.progress = Progress::HeadRead { reusable: head.keeps_alive() };
            // Bytes after the end of the body belong to no response. They are not forwarded, and the connection is not
            // used again.
            self.body.begin(head.length);
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.progress != Progress::Awaited
    }

    fn has_head(&self) -> bool {
        matches!(self.progress, Progress::HeadRead { .. })
    }
}

impl Source for H1Answer<'_> {
    async fn next(&mut self) -> Result<Piece<'_>, PeerError> {
        self.body.next().await
    }
}

impl Forward for BodyWriter<'_> {
    /// Closes the connection for writing. The response can still be read.
    async fn break_off(&mut self) -> bool {
        self.out.clear();
        self.socket.timer.set(Way::Out, self.meter.patience());
        let closed = self.socket.shutdown().await;
        self.socket.timer.clear(Way::Out);
        closed.is_ok()
    }
}

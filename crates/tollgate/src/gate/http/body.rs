//! The interface for bodies of HTTP/1.1 and HTTP/2: pieces that go from a [`Source`] to a [`Sink`] one at a time. The
//! gate never has a whole body in one place, unless it is small.

use tollgate_wire::http1::{Fields, Length};

/// How a peer failed: a client or a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerError {
    /// The peer closed the connection, or reset the stream.
    Gone,
    /// The peer exceeded a deadline.
    Slow,
    /// The peer violated the protocol, in the way that the text describes.
    Malformed(&'static str),
}

impl PeerError {
    /// A description for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "closed the connection",
            Self::Slow => "took too long",
            Self::Malformed(what) => what,
        }
    }
}

impl From<std::io::Error> for PeerError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::TimedOut { Self::Slow } else { Self::Gone }
    }
}

/// A piece of a body.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// At least one byte.
    Data(&'a [u8], Rest),
    /// The end, with the trailers.
    End(Option<&'a Fields>),
}

/// The part of the body after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The end of the body, without trailers.
    End,
    /// More, which is probably here already.
    AtHand,
    /// More, which has not come yet.
    ToCome,
}

/// Reads a body.
pub(crate) trait Source {
    /// The next piece. If the future is dropped before it is ready, no bytes are lost: `next` can be called again.
    async fn next(&mut self) -> Result<Piece<'_>, PeerError>;
}

/// Writes a body.
pub(crate) trait Sink {
    /// Sends a piece, or keeps it until the next call if more follows at once.
    async fn send(&mut self, data: &[u8], rest: Rest) -> Result<(), PeerError>;

    /// Sends the pieces that were kept. By default, none are.
    async fn flush(&mut self) -> Result<(), PeerError> {
        Ok(())
    }

    /// Ends the body.
    async fn end(&mut self, trailers: Option<&Fields>) -> Result<(), PeerError>;
}

/// The side of an exchange that failed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SideError {
    Client(PeerError),
    Backend(PeerError),
}

/// Compares a body with the `Content-Length` of its head: the bytes that are left, if there is one. No byte beyond that
/// length is forwarded, and a body that ends early is not ended on the other side. The readers check this too; here it
/// holds for all of them.
pub(crate) struct Announced(Option<u64>);

impl Announced {
    pub(crate) fn by(length: Length) -> Self {
        Self(match length {
            Length::Fixed(length) => Some(length),
            Length::Empty | Length::Chunked | Length::UntilClose => None,
        })
    }

    /// Counts bytes that are about to be forwarded.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), PeerError> {
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(bytes as u64).ok_or(TOO_LONG)?;
        }
        Ok(())
    }

    /// Fails if the body ended too early.
    pub(crate) fn end(&self) -> Result<(), PeerError> {
        if self.0.is_some_and(|left| left > 0) { Err(TOO_SHORT) } else { Ok(()) }
    }
}

pub(super) const TOO_LONG: PeerError = PeerError::Malformed("the body is longer than its Content-Length");
pub(super) const TOO_SHORT: PeerError = PeerError::Malformed("the body is shorter than its Content-Length");

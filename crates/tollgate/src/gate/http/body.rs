//! Bodies on their way through: pieces from a source to a sink, one at a time, nothing collected.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate_wire::http1::{Fields, Length};

/// How one side of an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The peer has gone, or reset what it was sending.
    Gone,
    /// The peer let a deadline pass.
    Slow,
    /// The peer sent what is not HTTP. The text says what.
    Malformed(&'static str),
}

impl Broken {
    /// What happened, for people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "closed the connection",
            Self::Slow => "took too long",
            Self::Malformed(what) => what,
        }
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::TimedOut { Self::Slow } else { Self::Gone }
    }
}

/// A piece of a body.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// Some bytes, never none.
    Data(&'a [u8], Rest),
    /// The end, with trailers if there were any.
    End(Option<&'a Fields>),
}

/// What follows a piece of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The end, and nothing else.
    End,
    /// Probably more, at once.
    AtHand,
    /// More, when it comes.
    ToCome,
}

/// Where a body comes from.
pub(crate) trait Source {
    /// The next piece. A wait for it may be given up and taken up again.
    async fn next(&mut self) -> Result<Piece<'_>, Broken>;
}

/// Where a body goes.
pub(crate) trait Sink {
    /// Sends a piece, or keeps it for a moment if something follows at once.
    async fn send(&mut self, data: &[u8], rest: Rest) -> Result<(), Broken>;

    /// Sends what has been kept back.
    async fn flush(&mut self) -> Result<(), Broken>;

    /// Ends the body.
    async fn end(&mut self, trailers: Option<&Fields>) -> Result<(), Broken>;
}

/// Hears how a body gets on, to price it.
pub(crate) trait Meter {
    /// How long the source may keep the sink waiting before the meter is told; none if it is not to be told.
    fn patience(&self) -> Option<Duration> {
        None
    }
    /// The source has kept the sink waiting for so long, and less than that.
    fn waited(&mut self, _wait: Duration) {}
    /// The source has kept the sink waiting for that long, and still does.
    fn starved(&mut self) {}
    /// The source has given so many bytes.
    fn fed(&mut self, _bytes: usize) {}
    /// The source may have waited for the sink, which has no more room.
    fn held_up(&mut self) {}
    /// The source has given everything, whether or not the sink has taken it.
    fn source_done(&mut self);
}

/// Which side broke while a body went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PumpBroke {
    Source(Broken),
    Sink(Broken),
}

/// Moves a whole body. What is at hand goes out together; before waiting for more, everything is sent.
///
/// A body whose head announced its `length` has just that length on the other side.
pub(crate) async fn pump(
    source: &mut impl Source,
    sink: &mut impl Sink,
    meter: &mut impl Meter,
    length: Length,
) -> Result<(), PumpBroke> {
    let mut announced = Announced::by(length);
    loop {
        let mut next = pin!(source.next());
        let piece = match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                sink.flush().await.map_err(PumpBroke::Sink)?;
                if let Some(patience) = meter.patience() {
                    let began = Instant::now();
                    match tokio::time::timeout(patience, next.as_mut()).await {
                        Ok(piece) => {
                            meter.waited(began.elapsed());
                            piece
                        }
                        Err(_) => {
                            meter.starved();
                            next.await
                        }
                    }
                } else {
                    next.await
                }
            }
        };
        match piece.map_err(PumpBroke::Source)? {
            Piece::Data(data, rest) => {
                announced.take(data.len()).map_err(PumpBroke::Source)?;
                meter.fed(data.len());
                if rest == Rest::End {
                    meter.source_done();
                }
                sink.send(data, rest).await.map_err(PumpBroke::Sink)?;
            }
            Piece::End(trailers) => {
                announced.end().map_err(PumpBroke::Source)?;
                meter.source_done();
                return sink.end(trailers).await.map_err(PumpBroke::Sink);
            }
        }
    }
}

/// The rest of a body whose length its head announced. Not a byte more is forwarded, and a body that ends early is not ended on the other
/// side. The readers hold to that as well; here it is enforced for all of them.
pub(crate) struct Announced(Option<u64>);

impl Announced {
    pub(crate) fn by(length: Length) -> Self {
        Self(match length {
            Length::Fixed(length) => Some(length),
            Length::Empty | Length::Chunked | Length::UntilClose => None,
        })
    }

    /// So many bytes are about to be forwarded.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Broken> {
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(bytes as u64).ok_or(TOO_LONG)?;
        }
        Ok(())
    }

    /// The body has ended.
    pub(crate) fn end(&self) -> Result<(), Broken> {
        if self.0.is_some_and(|left| left > 0) { Err(TOO_SHORT) } else { Ok(()) }
    }
}

const TOO_LONG: Broken = Broken::Malformed("the body is longer than its Content-Length");
const TOO_SHORT: Broken = Broken::Malformed("the body is shorter than its Content-Length");

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    struct Pieces(VecDeque<Vec<u8>>, Vec<u8>);

    impl Source for Pieces {
        async fn next(&mut self) -> Result<Piece<'_>, Broken> {
            let Some(piece) = self.0.pop_front() else { return Ok(Piece::End(None)) };
            self.1 = piece;
            Ok(Piece::Data(&self.1, Rest::ToCome))
        }
    }

    #[derive(Default)]
    struct Sent {
        bytes: Vec<u8>,
        ended: bool,
    }

    impl Sink for Sent {
        async fn send(&mut self, data: &[u8], _rest: Rest) -> Result<(), Broken> {
            self.bytes.extend_from_slice(data);
            Ok(())
        }

        async fn flush(&mut self) -> Result<(), Broken> {
            Ok(())
        }

        async fn end(&mut self, _trailers: Option<&Fields>) -> Result<(), Broken> {
            self.ended = true;
            Ok(())
        }
    }

    struct Unmetered;

    impl Meter for Unmetered {
        fn source_done(&mut self) {}
    }

    #[tokio::test]
    async fn a_body_has_the_length_that_was_announced_on_the_other_side_too() {
        for (pieces, length, sent, fault) in [
            (&["abc", "de"][..], Length::Fixed(5), "abcde", None),
            (&["abc", "def"], Length::Fixed(5), "abc", Some(TOO_LONG)),
            (&["abc"], Length::Fixed(5), "abc", Some(TOO_SHORT)),
            (&[], Length::Fixed(0), "", None),
            (&["x"], Length::Fixed(0), "", Some(TOO_LONG)),
            (&["abc", "def"], Length::Chunked, "abcdef", None),
        ] {
            let mut source = Pieces(pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(), Vec::new());
            let mut sink = Sent::default();
            let pumped = pump(&mut source, &mut sink, &mut Unmetered, length).await;
            assert_eq!(pumped, fault.map_or(Ok(()), |fault| Err(PumpBroke::Source(fault))), "{pieces:?}");
            assert_eq!((&sink.bytes[..], sink.ended), (sent.as_bytes(), fault.is_none()), "{pieces:?}");
        }
    }
}

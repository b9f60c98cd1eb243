//! Bodies on their way through: pieces from a source to a sink, one at a time, nothing collected.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate_wire::http1::Fields;

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
    /// The sink holds the source up.
    fn stalled(&mut self);
    /// The sink takes more again.
    fn flowing(&mut self);
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
pub(crate) async fn pump(
    source: &mut impl Source,
    sink: &mut impl Sink,
    meter: &mut impl Meter,
) -> Result<(), PumpBroke> {
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
                meter.fed(data.len());
                if rest == Rest::End {
                    meter.source_done();
                }
                metered(sink.send(data, rest), meter).await.map_err(PumpBroke::Sink)?;
            }
            Piece::End(trailers) => {
                meter.source_done();
                return sink.end(trailers).await.map_err(PumpBroke::Sink);
            }
        }
    }
}

/// Waits for a send and tells the meter if there is a wait.
async fn metered<T>(send: impl Future<Output = T>, meter: &mut impl Meter) -> T {
    let mut send = pin!(send);
    let mut stalled = false;
    poll_fn(|cx| {
        let polled = send.as_mut().poll(cx);
        if polled.is_pending() != stalled {
            stalled = !stalled;
            if stalled { meter.stalled() } else { meter.flowing() }
        }
        polled
    })
    .await
}

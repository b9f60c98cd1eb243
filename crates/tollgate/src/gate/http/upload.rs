//! Sends the body of a request to its backend.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate_wire::http1::Length;

use super::body::{Announced, Piece, Rest, SideError, Sink, Source};

/// Observes how an upload proceeds, to price it.
pub(crate) trait UploadMeter {
    /// The longest wait for the client before the upload stalls; none if that is not measured.
    fn patience(&self) -> Option<Duration>;
    /// The gate waited for the client, for less than the patience.
    fn waited(&mut self, wait: Duration);
    /// The gate has waited for the client as long as its patience, and waits on.
    fn stalled(&mut self);
    /// The client sent this many bytes.
    fn fed(&mut self, bytes: usize);
    /// The client has sent everything, whether or not the backend has read it.
    fn complete(&mut self);
}

/// Sends a whole body from the client to the backend. Pieces that are here go out together; before it waits for more,
/// everything is sent.
///
/// A body whose head announced its `length` has exactly that length for the backend.
pub(crate) async fn upload(
    client: &mut impl Source,
    backend: &mut impl Sink,
    meter: &mut impl UploadMeter,
    length: Length,
) -> Result<(), SideError> {
    let mut announced = Announced::by(length);
    loop {
        let mut next = pin!(client.next());
        let piece = match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                backend.flush().await.map_err(SideError::Backend)?;
                if let Some(patience) = meter.patience() {
                    let began = Instant::now();
                    match tokio::time::timeout(patience, next.as_mut()).await {
                        Ok(piece) => {
                            meter.waited(began.elapsed());
                            piece
                        }
                        Err(_) => {
                            meter.stalled();
                            next.await
                        }
                    }
                } else {
                    next.await
                }
            }
        };
        match piece.map_err(SideError::Client)? {
            Piece::Data(data, rest) => {
                announced.take(data.len()).map_err(SideError::Client)?;
                meter.fed(data.len());
                if rest == Rest::End {
                    meter.complete();
                }
                backend.send(data, rest).await.map_err(SideError::Backend)?;
            }
            Piece::End(trailers) => {
                announced.end().map_err(SideError::Client)?;
                meter.complete();
                return backend.end(trailers).await.map_err(SideError::Backend);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tollgate_wire::http1::Fields;

    use super::*;
    use crate::gate::http::body::{PeerError, TOO_LONG, TOO_SHORT};

    struct Pieces(VecDeque<Vec<u8>>, Vec<u8>);

    impl Source for Pieces {
        async fn next(&mut self) -> Result<Piece<'_>, PeerError> {
            let Some(piece) = self.0.pop_front() else { return Ok(Piece::End(None)) };
            self.1 = piece;
            Ok(Piece::Data(&self.1, Rest::ToCome))
        }
    }

    #[derive(Default)]
    struct CollectedBody {
        bytes: Vec<u8>,
        ended: bool,
    }

    impl Sink for CollectedBody {
        async fn send(&mut self, data: &[u8], _rest: Rest) -> Result<(), PeerError> {
            self.bytes.extend_from_slice(data);
            Ok(())
        }

        async fn flush(&mut self) -> Result<(), PeerError> {
            Ok(())
        }

        async fn end(&mut self, _trailers: Option<&Fields>) -> Result<(), PeerError> {
            self.ended = true;
            Ok(())
        }
    }

    struct Unmetered;

    impl UploadMeter for Unmetered {
        fn patience(&self) -> Option<Duration> {
            None
        }
        fn waited(&mut self, _wait: Duration) {}
        fn stalled(&mut self) {}
        fn fed(&mut self, _bytes: usize) {}
        fn complete(&mut self) {}
    }

    #[tokio::test]
    async fn a_forwarded_body_has_the_announced_length() {
        for (pieces, length, sent, fault) in [
            (&["abc", "de"][..], Length::Fixed(5), "abcde", None),
            (&["abc", "def"], Length::Fixed(5), "abc", Some(TOO_LONG)),
            (&["abc"], Length::Fixed(5), "abc", Some(TOO_SHORT)),
            (&[], Length::Fixed(0), "", None),
            (&["x"], Length::Fixed(0), "", Some(TOO_LONG)),
            (&["abc", "def"], Length::Chunked, "abcdef", None),
        ] {
            let mut source = Pieces(pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(), Vec::new());
            let mut sink = CollectedBody::default();
            let uploaded = upload(&mut source, &mut sink, &mut Unmetered, length).await;
            assert_eq!(uploaded, fault.map_or(Ok(()), |fault| Err(SideError::Client(fault))), "{pieces:?}");
            assert_eq!((&sink.bytes[..], sink.ended), (sent.as_bytes(), fault.is_none()), "{pieces:?}");
        }
    }
}

//! Sends the body of a request to its backend, while the response may already be on its way back (`download`).

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use tollgate_wire::http1::Length;

use super::body::{Announced, Piece, Rest, SideError, Sink, Source};
use crate::gate::decide::admission::Ticket;

/// Sends a whole body from the client to the backend. Pieces that have arrived are sent together; everything is sent
/// before a wait for more.
///
/// The upload fails if the body does not have the `length` that its head announced. The ticket of the request is
/// updated as the upload proceeds: it releases the permit to use the backend while the client stalls.
pub(crate) async fn upload(
    client: &mut impl Source,
    backend: &mut impl Sink,
    ticket: &RefCell<&mut Ticket>,
    length: Length,
) -> Result<(), SideError> {
    let mut announced = Announced::by(length);
    loop {
        let mut next = pin!(client.next());
        let piece = match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                backend.flush().await.map_err(SideError::Backend)?;
                let patience = ticket.borrow().patience();
                if let Some(patience) = patience {
                    let began = Instant::now();
                    match tokio::time::timeout(patience, next.as_mut()).await {
                        Ok(piece) => {
                            ticket.borrow_mut().waited(began.elapsed());
                            piece
                        }
                        Err(_) => {
                            ticket.borrow_mut().stalled();
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
                ticket.borrow_mut().fed(data.len());
                if rest == Rest::End {
                    ticket.borrow_mut().sent();
                }
                backend.send(data, rest).await.map_err(SideError::Backend)?;
            }
            Piece::End(trailers) => {
                announced.end().map_err(SideError::Client)?;
                ticket.borrow_mut().sent();
                return backend.end(trailers).await.map_err(SideError::Backend);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use tollgate_gatekeeper::clock::Clock;
    use tollgate_wire::http1::{Fields, RequestHead};

    use super::*;
    use crate::gate::decide::admission::Admission;
    use crate::gate::decide::identify::RequestView;
    use crate::gate::decide::remote_state::RemoteLinks;
    use crate::gate::http::body::{PeerError, TOO_LONG, TOO_SHORT};
    use crate::gate::observe::engagement_log::EngagementLog;
    use crate::settings::Settings;

    /// The pieces that are still to come, and the one that was returned last.
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

    /// The ticket of a request without rules.
    async fn ticket() -> Ticket {
        let settings = Settings::parse("test.toml", "").unwrap();
        let (domain, gate) = (&settings.domains[0], settings.gate.unwrap_or_default());
        let admission = Admission::new(domain, &gate, RemoteLinks::default(), Clock::start()).unwrap();
        let (head, log) = (RequestHead::default(), EngagementLog::new(Arc::default(), Arc::default()));
        let (request, mut ticket) = (RequestView::new([127, 0, 0, 1].into(), &head), None);
        Arc::new(admission).admit(&request, &log, &mut ticket).await.ok().unwrap();
        ticket.unwrap()
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
            let uploaded = upload(&mut source, &mut sink, &RefCell::new(&mut ticket().await), length).await;
            assert_eq!(uploaded, fault.map_or(Ok(()), |fault| Err(SideError::Client(fault))), "{pieces:?}");
            assert_eq!((&sink.bytes[..], sink.ended), (sent.as_bytes(), fault.is_none()), "{pieces:?}");
        }
    }
}

//! Streams a request to a backend, and its response to the client, on one connection to the backend.
//!
//! Both directions are futures of one task: the rest of the request goes out while the response comes in. The response
//! is buffered only while its client reads too slowly ([`download`](mod@download)).
//!
//! The stream ends when the backend has sent its whole response, not when the client has read it; the rest is sent from
//! the buffer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tollgate_wire::http1::fields::tokens;
use tollgate_wire::http1::hop_by_hop::strip_nominated;
use tollgate_wire::http1::{Name, RequestHead, ResponseHead};

use super::attempt::AttemptEnd;
use super::{End, Inbound, discard};
use crate::gate::decide::admission::{Outcome, Ticket};
use crate::gate::http::backend::Backend;
use crate::gate::http::body::{PeerError, SideError};
use crate::gate::http::download::{self, download, has_media_type};
use crate::gate::http::halves::{BackendAnswer, ClientBody, Forward, Reply};
use crate::gate::http::report;
use crate::gate::http::spool::Overflow;
use crate::gate::http::upload::upload;
use crate::gate::net::timer::{Timer, Way};
use crate::settings::Gate as Settings;

/// A request and its response, on one connection to a backend.
pub(super) struct Stream<'s, 'a, B, R> {
    pub(super) inbound: &'s mut Inbound<'a>,
    pub(super) backend: &'s Backend,
    /// The deadlines of the connection, or stream, to the backend.
    pub(super) timer: &'s Timer,
    pub(super) body: &'s mut B,
    pub(super) reply: &'s mut R,
    pub(super) ticket: &'s mut Ticket,
    /// Buffers the part of the response that the client has not read.
    pub(super) overflow: &'s mut Overflow<'a>,
}

impl<B: ClientBody, R: Reply> Stream<'_, '_, B, R> {
    /// Streams until the backend has sent its whole response, or one side fails. `answer` reads from the backend,
    /// `sink` writes to it.
    pub(super) async fn run(self, answer: &mut impl BackendAnswer, sink: &mut impl Forward) -> AttemptEnd {
        let Self { inbound, backend, timer, body, reply, ticket, overflow } = self;
        let Inbound { worker, settings, request, response, keep, .. } = inbound;
        let request = &**request;
        let (is_uploaded, is_reply_begun, is_endless) = (Cell::new(false), Cell::new(false), Cell::new(false));
        let shared = RefCell::new(&mut *ticket);
        // The backend may wait for the rest of the request before it responds.
        timer.clear(Way::In);
        let uploading = async {
            match upload(body, sink, &shared, request.length).await {
                Ok(()) => {
                    timer.set(Way::In, settings.timeouts.response_head);
                    is_uploaded.set(true);
                    SideError::Client(body.departure().await)
                }
                Err(SideError::Backend(error)) if error != PeerError::Slow => {
                    // The backend reads no more, perhaps because it has responded already. The download gets that
                    // response, or fails.
                    timer.set(Way::In, settings.timeouts.response_head);
                    std::future::pending().await
                }
                Err(error) => error,
            }
        };
        let downloading = async {
            loop {
                answer.head(response).await.map_err(SideError::Backend)?;
                strip_nominated(&mut response.fields);
                if !response.is_interim() {
                    break;
                }
                reply.interim(response).await.map_err(SideError::Client)?;
            }
            check_upgrade(request, response).map_err(SideError::Backend)?;
            // From the head on, the backend counts as healthy: the body may take hours, or depend on the client.
            backend.succeeded();
            {
                let mut ticket = shared.borrow_mut();
                ticket.answers(response.status, has_media_type(response, b"application/grpc"));
                ticket.reported(report::take(&mut response.fields, &settings.toll));
                ticket.reported_load(report::take_load(&mut response.fields, settings.bands.header.as_deref()));
                ticket.write_limit_headers(&mut response.fields);
            }
            let keep = *keep && is_uploaded.get() && !worker.is_draining();
            reply.begin(response, keep).map_err(SideError::Client)?;
            is_reply_begun.set(true);
            if has_media_type(response, b"text/event-stream") {
                // It lasts as long as its client likes, and takes little work at the backend, so it is settled now.
                is_endless.set(true);
                shared.borrow_mut().done(Outcome::Answered);
            }
            // A closed overflow buffers nothing: the backend waits for the client instead.
            if !download::is_bufferable(response) {
                overflow.is_closed = true;
            }
            // The time in which the backend waited for the client is charged, but no price is learned from it.
            download(answer, reply.body(), overflow, response.length, || shared.borrow_mut().held_up()).await?;
            Ok(keep)
        };
        let streamed = race(pin!(downloading), pin!(uploading)).await;
        let (is_uploaded, is_reply_begun) = (is_uploaded.get(), is_reply_begun.get());
        match streamed {
            Ok(keep) => AttemptEnd::Last(End::Answered { keep, is_complete: is_uploaded }),
            Err(SideError::Backend(error)) => {
                AttemptEnd::BackendFailed { error, has_begun: answer.has_begun(), is_cut: is_reply_begun }
            }
            // An event stream is settled since its head.
            Err(SideError::Client(error)) if is_endless.get() => {
                AttemptEnd::Last(End::ClientFailed { error, has_begun: is_reply_begun, outcome: None })
            }
            Err(SideError::Client(error)) => {
                // The download was interrupted, perhaps while it waited for room.
                if overflow.was_full {
                    ticket.held_up();
                }
                overflow.clear();
                // The backend works on after its client has left or failed. The request is charged until the backend
                // has finished. The upload has ended, so it does not count as stalled any more.
                ticket.sent();
                let outcome = if is_uploaded {
                    read_unheard(answer, response, ticket, backend, settings).await
                } else if sink.break_off().await {
                    // HTTP/1.1: the backend sees the end of the incomplete request, and its response can still be read.
                    // The gate waits for that response.
                    read_unheard(answer, response, ticket, backend, settings).await;
                    Outcome::CutShort
                } else {
                    // HTTP/2: the stream is reset, and the gate cannot see when the backend finishes.
                    Outcome::Unheard
                };
                AttemptEnd::Last(End::ClientFailed { error, has_begun: is_reply_begun, outcome: Some(outcome) })
            }
        }
    }
}

/// Fails if the backend switches to a protocol that the client did not ask for. A 101 without `Upgrade` is accepted.
fn check_upgrade(request: &RequestHead, response: &ResponseHead) -> Result<(), PeerError> {
    if response.status != 101 {
        return Ok(());
    }
    if request.upgrade().is_none() {
        return Err(PeerError::Malformed("an upgrade that nobody asked for"));
    }
    let mut protocols = response.fields.all(Name::Upgrade).flat_map(tokens);
    if protocols.all(|protocol| request.fields.has_token(Name::Upgrade, protocol)) {
        return Ok(());
    }
    Err(PeerError::Malformed("an upgrade to another protocol than was asked for"))
}

/// Reads a response whose client has left or failed, within bounds, so that the backend finishes and its cost is known.
///
/// Closing the connection at once would not stop the backend's work, only hide when it ends. A response that exceeds
/// the bounds is cut off; the backend notices that.
async fn read_unheard(
    answer: &mut impl BackendAnswer,
    response: &mut ResponseHead,
    ticket: &mut Ticket,
    backend: &Backend,
    settings: &Settings,
) -> Outcome {
    let read = async {
        if !answer.has_head() {
            // Interim responses are skipped.
            while !answer.has_head() {
                answer.head(response).await?;
            }
            backend.succeeded();
            ticket.reported(report::take(&mut response.fields, &settings.toll));
            ticket.reported_load(report::take_load(&mut response.fields, settings.bands.header.as_deref()));
        }
        discard(answer, settings.bounds.unheard_bytes_max).await
    };
    // A client that waits for a late head is charged up to `response_head`. One that leaves must not be charged less.
    let timeout = settings.timeouts.response_head.max(settings.timeouts.unheard);
    let read: Result<Result<bool, PeerError>, _> = tokio::time::timeout(timeout, read).await;
    match read {
        Ok(Ok(true)) => Outcome::Answered,
        Ok(Ok(false)) | Err(_) => Outcome::Abandoned,
        Ok(Err(_)) => Outcome::Failed,
    }
}

/// Waits until the download ends, the upload fails, or the client leaves after its upload.
async fn race<T>(
    mut download: Pin<&mut impl Future<Output = Result<T, SideError>>>,
    mut upload: Pin<&mut impl Future<Output = SideError>>,
) -> Result<T, SideError> {
    // The first poll is of the upload, so that the request is sent before its response is read. Afterwards the download
    // is polled first: a response that is complete counts, even if the client has left.
    if let Poll::Ready(error) = poll_fn(|cx| Poll::Ready(upload.as_mut().poll(cx))).await {
        return Err(error);
    }
    poll_fn(|cx| match download.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(ended),
        Poll::Pending => upload.as_mut().poll(cx).map(Err),
    })
    .await
}

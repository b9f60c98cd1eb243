//! Waits of a request, such as in the queue, that end early when its client leaves.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use super::End;
use crate::gate::http::body::PeerError;
use crate::gate::http::halves::ClientBody;

/// The result of `wait`, or an error when the client leaves first. `wait` is pinned by the caller, because a future
/// that is passed by value is copied, with all memory that it may ever need.
pub(super) async fn unless_departed<T>(
    mut wait: Pin<&mut impl Future<Output = T>>,
    body: &mut impl ClientBody,
) -> Result<T, PeerError> {
    // Most waits are over at the first poll, and then the state of the client does not matter.
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await {
        return Ok(output);
    }
    let mut departure = pin!(body.departure());
    poll_fn(|cx| match wait.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => departure.as_mut().poll(cx).map(Err),
    })
    .await
}

/// Waits on behalf of a client, as long as the client is there.
pub(super) async fn or_departure<T>(
    wait: Pin<&mut impl Future<Output = T>>,
    body: &mut impl ClientBody,
) -> Result<T, End> {
    unless_departed(wait, body).await.map_err(|_| End::LEFT)
}

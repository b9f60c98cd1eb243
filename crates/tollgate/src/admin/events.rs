//! What happens, as it happens: one event a second for everybody who looks.
//!
//! The status is written once a second, and only if somebody looks. Who reads slowly gets the latest and misses some: nothing waits for
//! a reader and nothing is kept for one.
//!
//! A reader is let in once and stays for hours. So it is looked at every event whether they would still be let in: a token that was taken away by a reload, and a session that is
//! over, take the stream with them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::watch;

use super::Console;
use super::guard::{Admission, Peer};
use super::problem::Problem;
use super::quota::Quota;

/// Event streams at once; one network has at most half of them.
const READERS_MAX: usize = 64;

/// Where the latest is, for all readers.
pub(super) struct Events {
    latest: watch::Sender<Arc<str>>,
    readers: Arc<Quota>,
}

impl Default for Events {
    fn default() -> Self {
        Self { latest: watch::channel("".into()).0, readers: Quota::new(READERS_MAX) }
    }
}

impl Events {
    /// Whether anybody looks.
    pub(super) fn has_readers(&self) -> bool {
        self.latest.receiver_count() > 0
    }

    /// Tells everybody who looks.
    pub(super) fn publish(&self, status: String) {
        self.latest.send_replace(status.into());
    }
}

/// A stream of events.
pub(super) async fn events(
    State(console): State<Arc<Console>>,
    Extension(admission): Extension<Admission>,
    peer: Option<Extension<Peer>>,
) -> Response {
    let Some(place) = console.events.readers.enter(Peer::address(peer)) else {
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many event streams are open").into_response();
    };
    let latest = console.events.latest.subscribe();
    // The first is told at once, so that a page need not wait.
    let first = super::api::status_text(&console);
    let state = (Some(first), latest, place, console);
    let events = stream::unfold((state, admission), |((first, mut latest, place, console), admission)| async move {
        let text = match first {
            Some(first) => first.into(),
            None => {
                latest.changed().await.ok()?;
                latest.borrow_and_update().clone()
            }
        };
        if !console.guard.still_admits(&admission, console.watch.calendar().now()) {
            return None;
        }
        let event: Result<Event, Infallible> = Ok(Event::default().event("status").data(&*text));
        Some((event, ((None, latest, place, console), admission)))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(10));
    let no_buffer = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (no_buffer, Sse::new(events).keep_alive(keep_alive)).into_response()
}

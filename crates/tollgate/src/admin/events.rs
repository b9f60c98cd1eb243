//! Event streams of the admin API (`GET /api/v1/events`), which the console reads: the status, once per second.
//!
//! The status is serialised once per second for all streams, and only if there is one. A slow reader receives the
//! latest status and misses others; nothing is queued for it.
//!
//! A stream lasts for hours, so its authorisation is checked again with each event: it ends when its session expires or
//! its token is replaced by a reload.

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

use super::ConsoleState;
use super::guard::{Credential, PeerAddress};
use super::problem::AdminProblem;
use super::quota::Quota;

/// Event streams at once; one network has at most half of them.
const READERS_MAX: usize = 64;

/// The state of all streams.
pub(super) struct Events {
    /// The latest status as JSON.
    pub(super) latest: watch::Sender<Arc<str>>,
    /// Permits for streams.
    readers: Arc<Quota>,
}

impl Default for Events {
    fn default() -> Self {
        Self { latest: watch::channel("".into()).0, readers: Quota::new(READERS_MAX) }
    }
}

/// `GET /api/v1/events`
pub(super) async fn events(
    State(console): ConsoleState,
    Extension(credential): Extension<Credential>,
    peer: Option<Extension<PeerAddress>>,
) -> Response {
    let Some(permit) = console.events.readers.enter(PeerAddress::address(peer)) else {
        return AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, "too many event streams are open").into_response();
    };
    let latest = console.events.latest.subscribe();
    // The first event is sent at once, so that a page is complete when it loads.
    let first = super::api::status_value(&console).to_string();
    let state = (Some(first), latest, permit, console);
    let events = stream::unfold((state, credential), |((first, mut latest, permit, console), credential)| async move {
        let text = match first {
            Some(first) => first.into(),
            None => {
                latest.changed().await.ok()?;
                latest.borrow_and_update().clone()
            }
        };
        if !console.guard.is_valid(&credential, console.watch.calendar.now()) {
            return None;
        }
        let event: Result<Event, Infallible> = Ok(Event::default().event("status").data(&*text));
        Some((event, ((None, latest, permit, console), credential)))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(10));
    // Without this header, nginx in front of the address would buffer the events.
    let no_buffer = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (no_buffer, Sse::new(events).keep_alive(keep_alive)).into_response()
}

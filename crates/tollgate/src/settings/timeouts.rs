//! `[gate.timeouts]`: how long each phase of a connection may take.

use std::time::Duration;

use tollgate_core::time::Span;

use super::fault::Collector;
use super::limit::nonzero;
use super::table::{Placed, table};

/// How long each phase of a connection may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// From the first byte of a head to its last; also for the first byte on a new connection, and for TLS.
    pub(crate) head: Duration,
    /// The longest silence within a request's body.
    pub(crate) body_idle: Duration,
    /// How long a client may take to accept the next bytes of an answer.
    pub(crate) write: Duration,
    /// How long a connection may wait for its next request.
    pub(crate) keep_alive: Duration,
    /// How long connecting to a backend may take.
    pub(crate) connect: Duration,
    /// How long a backend may take from the end of the request to the head of its answer.
    pub(crate) response_head: Duration,
    /// The longest silence within an answer's body, and the longest a backend may take to accept the next bytes.
    pub(crate) backend_idle: Duration,
    /// How long an unused connection to a backend is kept.
    pub(crate) backend_keep_alive: Duration,
    /// The longest silence in both directions of an upgraded connection.
    pub(crate) upgraded_idle: Duration,
    /// How long the answer to a client that has left is read, so that the backend finishes and the toll is known.
    pub(crate) unheard: Duration,
    /// How long requests in flight may take to finish once the gate is told to stop.
    pub(crate) drain: Duration,
}

table! {
    /// How long each phase of a connection may take.
    struct TimeoutsTable {
        /// From the first byte of a request's head to its last; also for the first byte on a new connection, and for TLS.
        head: Span = "\"10s\"",
        /// The longest silence within a request's body.
        body_idle: Span = "\"30s\"",
        /// How long a client may take to accept the next bytes of an answer.
        write: Span = "\"30s\"",
        /// How long a connection may wait for its next request.
        keep_alive: Span = "\"75s\"",
        /// How long connecting to a backend may take.
        connect: Span = "\"5s\"",
        /// How long a backend may take from the end of the request to the head of its answer.
        response_head: Span = "\"60s\"",
        /// The longest silence within an answer's body, and the longest a backend may take to accept the next bytes.
        backend_idle: Span = "\"60s\"",
        /// How long an unused connection to a backend is kept.
        backend_keep_alive: Span = "\"15s\"",
        /// The longest silence in both directions after an upgrade, such as to a websocket.
        upgraded_idle: Span = "\"10min\"",
        /// How long the answer to a client that has left is read, so that the backend finishes and its price is known.
        unheard: Span = "\"30s\"",
        /// How long requests at work may take to end once the gate is told to stop.
        drain: Span = "\"30s\"",
    }
}

impl TimeoutsTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Timeouts {
        let mut timeout = |span: Placed<Span>| Duration::from(nonzero(&span, faults).unwrap_or_default());
        Timeouts {
            head: timeout(self.head),
            body_idle: timeout(self.body_idle),
            write: timeout(self.write),
            keep_alive: timeout(self.keep_alive),
            connect: timeout(self.connect),
            response_head: timeout(self.response_head),
            backend_idle: timeout(self.backend_idle),
            backend_keep_alive: timeout(self.backend_keep_alive),
            upgraded_idle: timeout(self.upgraded_idle),
            unheard: timeout(self.unheard),
            drain: timeout(self.drain),
        }
    }
}

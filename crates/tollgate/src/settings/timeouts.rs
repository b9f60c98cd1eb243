//! `[gate.timeouts]`: timeouts of each phase of a connection.

use std::time::Duration;

use tollgate_core::time::Span;

use super::error::ErrorCollector;
use super::limit::nonzero;
use super::table::{Located, table};

/// Timeouts of each phase of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// The time to receive a request head; also to receive the first byte on a new connection, and for the TLS
    /// handshake.
    pub(crate) head: Duration,
    /// The time without a byte of a request body.
    pub(crate) body_idle: Duration,
    /// The time in which a client accepts no byte of a response.
    pub(crate) write: Duration,
    /// The time that an idle client connection is kept open.
    pub(crate) keep_alive: Duration,
    /// The time to connect to a backend.
    pub(crate) connect: Duration,
    /// The time from the end of the request to the head of the backend's response.
    pub(crate) response_head: Duration,
    /// The time without a byte of a response body, and in which a backend accepts no byte of a request.
    pub(crate) backend_idle: Duration,
    /// The time that an idle backend connection is kept open.
    pub(crate) backend_keep_alive: Duration,
    /// The time without a byte in either direction of an upgraded connection.
    pub(crate) upgraded_idle: Duration,
    /// The time that a response is read after its client has disconnected, so that the backend finishes and the toll is
    /// known.
    pub(crate) unheard: Duration,
    /// The time that requests in flight have to finish during a shutdown.
    pub(crate) drain: Duration,
}

table! {
    /// Timeouts of each phase of a connection.
    struct TimeoutsTable {
        /// The time to receive a request head; also to receive the first byte on a new connection, and for the TLS
        /// handshake.
        head: Span = "\"10s\"",
        /// The time without a byte of a request body.
        body_idle: Span = "\"30s\"",
        /// The time in which a client accepts no byte of a response.
        write: Span = "\"30s\"",
        /// The time that an idle client connection is kept open.
        keep_alive: Span = "\"75s\"",
        /// The time to connect to a backend.
        connect: Span = "\"5s\"",
        /// The time from the end of the request to the head of the backend's response.
        response_head: Span = "\"60s\"",
        /// The time without a byte of a response body, and in which a backend accepts no byte of a request.
        backend_idle: Span = "\"60s\"",
        /// The time that an idle backend connection is kept open.
        backend_keep_alive: Span = "\"15s\"",
        /// The time without a byte in either direction after an upgrade, such as to a websocket.
        upgraded_idle: Span = "\"10min\"",
        /// The time that a response is read after its client has disconnected, so that the backend finishes and the
        /// cost is known.
        unheard: Span = "\"30s\"",
        /// The time that requests in flight have to finish during a shutdown.
        drain: Span = "\"30s\"",
    }
}

impl TimeoutsTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Timeouts {
        let mut timeout = |span: Located<Span>| Duration::from(nonzero(&span, errors).unwrap_or_default());
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

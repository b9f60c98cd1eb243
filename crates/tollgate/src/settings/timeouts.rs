//! `[gate.timeouts]`: timeouts of each phase of a connection.

use std::time::Duration;

use super::table::table;

table! {
    /// Timeouts of each phase of a connection.
    pub(crate) struct Timeouts {
        /// The time to receive a request head; also to receive the first byte on a new connection, and for the TLS
        /// handshake.
        head: Duration = "\"10s\"",
        /// The time without a byte of a request body.
        body_idle: Duration = "\"30s\"",
        /// The time in which a client accepts no byte of a response.
        write: Duration = "\"30s\"",
        /// The time that an idle client connection is kept open.
        keep_alive: Duration = "\"75s\"",
        /// The time to connect to a backend.
        connect: Duration = "\"5s\"",
        /// The time from the end of the request to the head of the backend's response.
        response_head: Duration = "\"60s\"",
        /// The time without a byte of a response body, and in which a backend accepts no byte of a request.
        backend_idle: Duration = "\"60s\"",
        /// The time that an idle backend connection is kept open.
        backend_keep_alive: Duration = "\"15s\"",
        /// The time without a byte in either direction after an upgrade, such as to a websocket.
        upgraded_idle: Duration = "\"10min\"",
        /// The time that a response is read after its client has disconnected, so that the backend finishes and the
        /// cost is known. It is at least `response_head`.
        unheard: Duration = "\"30s\"",
        /// The time that requests in flight have to finish during a shutdown.
        drain: Duration = "\"30s\"",
    }
}

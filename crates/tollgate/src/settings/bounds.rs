//! `[gate.bounds]`: bounds of requests and connections.

use std::ops::RangeInclusive;

use super::table::table;
use super::value::{Size, WholeNumber};

table! {
    /// Bounds of requests and connections.
    pub(crate) struct Bounds {
        /// Maximum length of a request line, from 1KiB to 64KiB. A longer one is answered with 414.
        line_bytes_max as "request_line": Size<usize> = "\"8KiB\"" where HEAD_BYTES => HEAD_ERROR,
        /// Maximum size of a request head, from 1KiB to 64KiB. A larger one is answered with 431.
        head_bytes_max as "head": Size<usize> = "\"32KiB\"" where HEAD_BYTES => HEAD_ERROR,
        /// Minimum average rate at which a client sends a request body and reads a response, per second. Only the time
        /// in which the gate waits for the client counts.
        body_bytes_per_sec_min as "body_per_second": Size = "\"256B\"",
        /// Maximum number of header fields of a request. More are answered with 431.
        fields_max as "fields": WholeNumber<usize> = "100",
        /// Maximum number of client connections. Beyond it, the connection that has been idle the longest is closed. If
        /// none is idle, a connection of the address with the most is closed, unless the new connection's address has
        /// as many.
        connections_max as "connections": WholeNumber<usize> = "16384",
        /// Maximum number of connections from one address, and at most a quarter of `connections` and of the available
        /// file descriptors. Trusted proxies are not counted.
        connections_per_address_max as "connections_per_address": WholeNumber<usize> = "1024",
        /// Maximum number of concurrent streams of an HTTP/2 connection.
        streams_max as "streams": WholeNumber<u32> = "128",
        /// Maximum number of idle connections of each worker to each backend.
        backend_idle_max as "backend_idle": WholeNumber<usize> = "128",
        /// Maximum size of a refused request's body that is read to keep the connection open.
        refused_body_bytes_max as "refused_body": Size = "\"64KiB\"",
        /// Maximum size of a response that is read after its client has disconnected, so that the backend finishes and
        /// the cost is known.
        unheard_bytes_max as "unheard": Size = "\"1MiB\"",
    }
}

/// Accepted sizes of a request line and a head: enough for any request, and at most what a connection may buffer.
const HEAD_BYTES: RangeInclusive<usize> = 1 << 10..=1 << 16;
const HEAD_ERROR: &str =
    "must be from \"1KiB\" to \"64KiB\": a request needs some memory, and more would help attackers";

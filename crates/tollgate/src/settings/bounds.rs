//! `[gate.bounds]`: bounds of requests and connections.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use super::error::ErrorCollector;
use super::table::{Located, table};
use super::value::Size;

/// Bounds of requests and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum length of a request line, in bytes.
    pub(crate) line_bytes_max: usize,
    /// Maximum size of a request head, in bytes.
    pub(crate) head_bytes_max: usize,
    /// Minimum average rate of uploads and downloads, in bytes per second.
    pub(crate) body_bytes_per_sec_min: u64,
    /// Maximum number of header fields.
    pub(crate) fields_max: usize,
    /// Maximum number of client connections.
    pub(crate) connections_max: usize,
    /// Maximum number of connections from one address, except trusted proxies.
    pub(crate) connections_per_address_max: usize,
    /// Maximum number of concurrent streams of an HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// Maximum number of idle connections of each worker to each backend.
    pub(crate) backend_idle_max: usize,
    /// Maximum size of a refused request's body that is read to keep the connection open, in bytes.
    pub(crate) refused_body_bytes_max: u64,
    /// Maximum size of a response that is read after its client has disconnected, in bytes.
    pub(crate) unheard_bytes_max: u64,
}

table! {
    /// Bounds of requests and connections.
    struct BoundsTable {
        /// Maximum length of a request line, from 1KiB to 64KiB. A longer one is answered with 414.
        request_line: Size = "\"8KiB\"",
        /// Maximum size of a request head, from 1KiB to 64KiB. A larger one is answered with 431.
        head: Size = "\"32KiB\"",
        /// Minimum average rate at which a client sends a request body and reads a response, per second. Only the time
        /// in which the gate waits for the client counts.
        body_per_second: Size = "\"256B\"",
        /// Maximum number of header fields of a request. More are answered with 431.
        fields: NonZeroU32 = "100",
        /// Maximum number of client connections. Beyond it, the connection that has been idle the longest is closed. If
        /// none is idle, a connection of the address with the most is closed, unless the new connection's address has
        /// as many.
        connections: NonZeroU32 = "16384",
        /// Maximum number of connections from one address, and at most a quarter of `connections` and of the available
        /// file descriptors. Trusted proxies are not counted.
        connections_per_address: NonZeroU32 = "1024",
        /// Maximum number of concurrent streams of an HTTP/2 connection.
        streams: NonZeroU32 = "128",
        /// Maximum number of idle connections of each worker to each backend.
        backend_idle: NonZeroU32 = "128",
        /// Maximum size of a refused request's body that is read to keep the connection open.
        refused_body: Size = "\"64KiB\"",
        /// Maximum size of a response that is read after its client has disconnected, so that the backend finishes and
        /// the cost is known.
        unheard: Size = "\"1MiB\"",
    }
}

/// Accepted sizes of a request line and a head: enough for any request, and at most what a connection may buffer.
const HEAD_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 16;

impl BoundsTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Bounds {
        let mut head = |size: &Located<Size>| {
            if !HEAD_BYTES.contains(&size.value.0) {
                errors.report(
                    &size.span,
                    "must be from \"1KiB\" to \"64KiB\": a request needs some memory, and more would help attackers",
                );
            }
            usize::try_from(size.value.0).unwrap_or(usize::MAX)
        };
        Bounds {
            line_bytes_max: head(&self.request_line),
            head_bytes_max: head(&self.head),
            body_bytes_per_sec_min: self.body_per_second.value.0,
            fields_max: count(&self.fields),
            connections_max: count(&self.connections),
            connections_per_address_max: count(&self.connections_per_address),
            streams_max: self.streams.value.get(),
            backend_idle_max: count(&self.backend_idle),
            refused_body_bytes_max: self.refused_body.value.0,
            unheard_bytes_max: self.unheard.value.0,
        }
    }
}

fn count(number: &Located<NonZeroU32>) -> usize {
    usize::try_from(number.value.get()).unwrap_or(usize::MAX)
}

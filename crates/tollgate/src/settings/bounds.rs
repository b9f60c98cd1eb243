//! `[gate.bounds]`: how much of everything there may be.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use super::fault::Collector;
use super::table::{Placed, table};
use super::value::Size;

/// How much of everything there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The longest request line in bytes.
    pub(crate) line_bytes_max: usize,
    /// The largest head in bytes.
    pub(crate) head_bytes_max: usize,
    /// The slowest that a client may send a request's body, and take an answer, on average, in bytes per second.
    pub(crate) body_bytes_per_sec_min: u64,
    /// The most header fields.
    pub(crate) fields_max: usize,
    /// Connections from clients, all together.
    pub(crate) connections_max: usize,
    /// Connections from one address. Trusted proxies are not counted.
    pub(crate) connections_per_address_max: usize,
    /// Requests at once on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// Idle connections that each worker keeps to each backend.
    pub(crate) backend_idle_max: usize,
    /// How much of the body of a refused request is read so that its connection can be kept.
    pub(crate) refused_body_bytes_max: u64,
    /// How much of an answer is read for a client that has left.
    pub(crate) unheard_bytes_max: u64,
}

table! {
    /// How much of everything there may be.
    struct BoundsTable {
        /// The longest request line, from 1KiB to 64KiB. A longer one is answered 414.
        request_line: Size = "\"8KiB\"",
        /// The largest head of a request, from 1KiB to 64KiB. A larger one is answered 431.
        head: Size = "\"32KiB\"",
        /// The slowest that a client may send a request's body, and take an answer, on average, per second. Only waits for the client count.
        body_per_second: Size = "\"256B\"",
        /// The most header fields of a request. More are answered 431.
        fields: NonZeroU32 = "100",
        /// How many connections clients may have, all together. When there are more, the one that has been idle for longest is closed, and if none is
        /// idle, one of the address with the most, unless the newcomer's address has as many.
        connections: NonZeroU32 = "16384",
        /// How many connections one address may have, at most a quarter of `connections` and of those that there are file descriptors for. Trusted
        /// proxies are not counted.
        connections_per_address: NonZeroU32 = "1024",
        /// How many requests may be at work at once on one HTTP/2 connection.
        streams: NonZeroU32 = "128",
        /// How many idle connections each worker keeps to each backend.
        backend_idle: NonZeroU32 = "128",
        /// How much of the body of a refused request is read, so that its connection can be kept.
        refused_body: Size = "\"64KiB\"",
        /// How much of an answer is read for a client that has left, so that the backend finishes and its price is known.
        unheard: Size = "\"1MiB\"",
    }
}

/// What a request needs at the least, and what a connection may hold at the most.
const HEAD_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 16;

impl BoundsTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Bounds {
        let mut head = |size: &Placed<Size>| {
            if !HEAD_BYTES.contains(&size.value.0) {
                faults.fault(
                    &size.span,
                    "must be from \"1KiB\" to \"64KiB\": a request needs some, and a stranger is not given more",
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

fn count(number: &Placed<NonZeroU32>) -> usize {
    usize::try_from(number.value.get()).unwrap_or(usize::MAX)
}

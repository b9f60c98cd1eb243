//! `[gate.buffer]`: buffers for responses to slow clients.

use std::path::PathBuf;

use super::table::table;
use super::value::Size;

table! {
    /// Buffers for responses whose clients read more slowly than the backend sends, so that the backend finishes.
    /// Nothing is buffered for a client that keeps up. Streams are not buffered: events, gRPC, upgraded connections,
    /// and responses with `X-Accel-Buffering: no`. When a bound is reached, the backend waits for the client.
    pub(crate) struct ResponseBuffer as "buffer" {
        /// Memory for all buffers, used first: up to 1 MiB for each response.
        memory_bytes_max as "memory": Size = "\"64MiB\"",
        /// The largest size of the spool file, which takes what does not fit into memory.
        spool_bytes_max as "spool": Size = "\"1GiB\"",
        /// Maximum of one client (an IPv4 address or an IPv6 /64), in memory and in the spool. At most a quarter of
        /// `memory` is for one client.
        per_address_bytes_max as "per_address": Size = "\"256MiB\"",
        /// The directory of the spool file, which has no name and disappears with the process. Do not use `/tmp`, which
        /// is in memory on many systems. If the file cannot be created, only memory is used, and one line is logged.
        /// The same happens while its disk is full or does not respond.
        dir: PathBuf = "\"/var/tmp\"",
    }
}

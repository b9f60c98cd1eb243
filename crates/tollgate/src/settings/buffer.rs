//! `[gate.buffer]`: buffers for responses to slow clients.

use std::path::PathBuf;

use super::table::table;
use super::value::Size;

/// Bounds of the buffers for responses to slow clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseBuffer {
    /// Maximum memory of all clients, in bytes.
    pub(crate) memory_bytes_max: u64,
    /// Maximum size of the spool file, in bytes.
    pub(crate) spool_bytes_max: u64,
    /// Maximum of one client, in memory and in the spool file, in bytes.
    pub(crate) per_address_bytes_max: u64,
    /// The directory of the spool file.
    pub(crate) dir: PathBuf,
}

table! {
    /// Buffers for responses whose clients read more slowly than the backend sends, so that the backend finishes.
    /// Nothing is buffered for a client that keeps up. Streams are not buffered: events, gRPC, upgraded connections,
    /// and responses with `X-Accel-Buffering: no`. When a bound is reached, the backend waits for the client.
    struct BufferTable {
        /// Memory for all buffers, used first: up to 1 MiB for each response.
        memory: Size = "\"64MiB\"",
        /// The largest size of the spool file, which takes what does not fit into memory.
        spool: Size = "\"1GiB\"",
        /// Maximum of one client (an IPv4 address or an IPv6 /64), in memory and in the spool. At most a quarter of
        /// `memory` is for one client.
        per_address: Size = "\"256MiB\"",
        /// The directory of the spool file, which has no name and disappears with the process. Do not use `/tmp`, which
        /// is in memory on many systems. If the file cannot be created, only memory is used, and one line is logged.
        /// The same happens while its disk is full or does not respond.
        dir: PathBuf = "\"/var/tmp\"",
    }
}

impl BufferTable {
    pub(super) fn resolve(self) -> ResponseBuffer {
        ResponseBuffer {
            memory_bytes_max: self.memory.value.0,
            spool_bytes_max: self.spool.value.0,
            per_address_bytes_max: self.per_address.value.0,
            dir: self.dir.value,
        }
    }
}

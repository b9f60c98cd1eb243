//! `[gate.buffer]`: how much of responses is buffered for slow clients.

use std::path::PathBuf;

use super::table::table;
use super::value::Size;

/// How much of responses is buffered for slow clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseBuffer {
    /// Bytes in memory, for all clients.
    pub(crate) memory_bytes_max: u64,
    /// Bytes in the spool file, for all clients.
    pub(crate) spool_bytes_max: u64,
    /// Bytes in both for one client.
    pub(crate) per_address_bytes_max: u64,
    /// The directory of the spool file.
    pub(crate) dir: PathBuf,
}

table! {
    /// Buffers for responses whose clients read more slowly than the backend sends, so that the backend finishes. Nothing is buffered for a client that keeps up. Streams
    /// are not buffered: events, gRPC, upgraded connections, and responses with `X-Accel-Buffering: no`. When a bound is
    /// reached, the backend waits for the client.
    struct BufferTable {
        /// Memory for all buffers, used first: up to 1 MiB for each response.
        memory: Size = "\"64MiB\"",
        /// The largest size of the spool file, which takes what does not fit into memory.
        spool: Size = "\"1GiB\"",
        /// How much one client may have buffered, in memory and in the spool: an IPv4 address or an IPv6 /64. At most a quarter of `memory` is for one client.
        per_address: Size = "\"256MiB\"",
        /// Where the spool file is. It has no name and disappears with the process. Not `/tmp`, which is memory on many systems. If the file cannot be created, only
        /// memory is used, and one line is logged. The same happens while its disk is full or does not respond.
        dir: PathBuf = "\"/var/tmp\"",
    }
}

impl BufferTable {
    pub(super) fn meaning(self) -> ResponseBuffer {
        ResponseBuffer {
            memory_bytes_max: self.memory.value.0,
            spool_bytes_max: self.spool.value.0,
            per_address_bytes_max: self.per_address.value.0,
            dir: self.dir.value,
        }
    }
}

//! The response of the HTTP door to a call.

use tollgate_wire::decimal;
use tollgate_wire::http1::response::reason;
use tollgate_wire::http1::{RequestHead, Version};

/// Maximum memory that is kept for the next response, in bytes.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// A response. The memory is reused for the next one on the same connection.
#[derive(Default)]
pub(super) struct DoorReply {
    pub(super) status: u16,
    /// Whether the connection closes after this response.
    pub(super) closes: bool,
    /// Header fields as lines.
    fields: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl DoorReply {
    /// Makes this an empty response with the status 200.
    pub(super) fn clear(&mut self) {
        self.status = 200;
        self.closes = false;
        self.fields.clear();
        self.body.clear();
        self.body.shrink_to(KEPT_BYTES_MAX);
    }

    /// Adds a header field. Name and value must be valid.
    pub(super) fn field(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.fields.extend_from_slice(part);
        }
    }

    /// Adds a header field with a number.
    pub(super) fn number_field(&mut self, name: &str, value: u64) {
        self.field(name, itoa::Buffer::new().format(value).as_bytes());
    }

    /// Makes the body a JSON document, which `write` writes.
    pub(super) fn json(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.field("content-type", b"application/json");
        self.field("cache-control", b"no-store");
        write(&mut self.body);
        self.body.push(b'\n');
    }

    /// Writes the response to `call`. `stays_open`: the connection is kept for the next call.
    pub(super) fn write(&self, out: &mut Vec<u8>, call: &RequestHead, stays_open: bool, date: &str) {
        out.extend_from_slice(b"HTTP/1.1 ");
        decimal::put(out, self.status.into());
        let connection: &[u8] = match (stays_open, call.version) {
            (false, _) => b"\r\nconnection: close",
            (true, Version::Http10) => b"\r\nconnection: keep-alive",
            (true, Version::Http11) => b"",
        };
        let parts =
            [b" ", reason(self.status).as_bytes(), connection, b"\r\ndate: ", date.as_bytes(), b"\r\ncontent-length: "];
        parts.iter().for_each(|part| out.extend_from_slice(part));
        decimal::put(out, self.body.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.fields);
        out.extend_from_slice(b"\r\n");
        if !call.is_head() {
            out.extend_from_slice(&self.body);
        }
    }
}

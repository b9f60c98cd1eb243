//! Memory for exchanges, reused from one to the next.

use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::{RequestHead, ResponseHead};

/// The memory of one exchange.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) request_decoder: Decoder,
    pub(crate) response_decoder: Decoder,
    /// Bytes for the client and for the backend that are not sent yet.
    pub(crate) client_out: Vec<u8>,
    pub(crate) backend_out: Vec<u8>,
    /// The value of a header field while it is written.
    pub(crate) value: Vec<u8>,
}

//! Memory for exchanges (requests with their responses), reused from one to the next, so that most requests allocate
//! nothing. Each worker thread keeps some.

use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::{RequestHead, ResponseHead};

/// The memory of one exchange.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    /// Decodes the chunks of the request.
    pub(crate) decoder: Decoder,
    /// Bytes for the client that are not sent yet.
    pub(crate) out: Vec<u8>,
    pub(crate) backend: BackendScratch,
}

/// The part of the memory that an attempt to reach a backend uses.
#[derive(Default)]
pub(crate) struct BackendScratch {
    /// Decodes the chunks of the response.
    pub(crate) decoder: Decoder,
    /// Bytes for the backend that are not sent yet.
    pub(crate) out: Vec<u8>,
    /// The value of a header field while it is written.
    pub(crate) value: Vec<u8>,
}

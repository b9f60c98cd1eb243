//! Memory for exchanges (requests with their responses) of HTTP/1 and HTTP/2 clients, reused from one to the next, so
//! that most HTTP/1 requests allocate nothing. `Worker::scratch` returns one; each worker thread keeps up to
//! `SCRATCHES_MAX` unused ones.

use tollgate_wire::http1::chunked::Decoder;
use tollgate_wire::http1::{RequestHead, ResponseHead};

/// The memory of one exchange. It has the contents of an earlier one: clear each part before it is used.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    /// Decodes the chunks of the request's body. Only for HTTP/1 clients, as is `out` below.
    pub(crate) decoder: Decoder,
    /// Bytes for the client that are not sent yet.
    pub(crate) out: Vec<u8>,
    pub(crate) backend: BackendScratch,
}

/// The part that an attempt to send the request to a backend uses. It is separate, because the other parts are borrowed
/// at the same time. A backend with HTTP/2 uses only `value`.
#[derive(Default)]
pub(crate) struct BackendScratch {
    /// Decodes the chunks of the response's body.
    pub(crate) decoder: Decoder,
    /// Bytes for the backend that are not sent yet.
    pub(crate) out: Vec<u8>,
    /// The value of a header field that the gate adds to the request, such as `X-Forwarded-For`, before it is copied.
    pub(crate) value: Vec<u8>,
}

//! The four halves of an exchange (a request and its response), as traits. Each is implemented for HTTP/1.1 and for
//! HTTP/2, so that the rest of the exchange does not depend on the version.
//!
//! | | request | response |
//! |---|---|---|
//! | client | [`ClientBody`] | [`Reply`] |
//! | backend | [`Forward`] | [`BackendAnswer`] |

use std::time::Duration;

use tollgate_wire::http1::{Length, ResponseHead};

use super::body::{PeerError, Sink, Source};
use super::download::Spill;

/// The largest body that is buffered before its request enters the queue, in bytes.
pub(crate) const GATHERED_MAX: usize = 16 * 1024;
/// The longest wait for all of a body without a known length, before its request is forwarded without the rest.
pub(crate) const UNSURE_MAX: Duration = Duration::from_millis(50);

/// The body of a client's request.
pub(crate) trait ClientBody: Source {
    /// Buffers the whole body, if it is no longer than [`GATHERED_MAX`], and returns whether it is complete. A body
    /// without a known length is given up after a pause of [`PAUSE_MAX`](crate::gate::decide::flow::PAUSE_MAX), and
    /// after [`UNSURE_MAX`]: its client may be waiting for a part of the response. With `is_awaited`, it is awaited
    /// like a body with a known length.
    async fn gather(&mut self, length: Length, is_awaited: bool) -> Result<bool, PeerError>;

    /// A copy of the body, once [`gather`](Self::gather) has returned true. [`Source::next`] still returns it.
    fn gathered(&self) -> Vec<u8>;

    /// Resolves when the client leaves. Bytes that it sends in the meantime are kept.
    async fn departure(&mut self) -> PeerError;

    /// Whether the whole body has been read.
    fn has_ended(&self) -> bool;

    /// The bytes of the request that are buffered, besides its head.
    fn buffered_bytes(&self) -> usize;

    /// The memory of the request's task while it waits in the queue, and of its stream in HTTP/2, in bytes.
    fn task_bytes(&self) -> usize;

    /// The request is complete and enters the queue: the queue bounds its memory until it leaves.
    fn enters_queue(&mut self) {}

    /// The request has left the queue, with a permit or a refusal. It may not have been in the queue.
    fn leaves_queue(&mut self) {}

    /// Whether the client leaves so many responses unread that no further request may be forwarded.
    fn is_unread(&self) -> bool {
        false
    }

    /// The request is forwarded: from now on the limits of the backend bound its memory.
    fn forwarded(&mut self) {}
}

/// The response to a client.
pub(crate) trait Reply {
    type Body: Sink + Spill;

    /// The body of the final response.
    fn body(&mut self) -> &mut Self::Body;

    /// Sends an interim response (1xx).
    async fn interim(&mut self, head: &ResponseHead) -> Result<(), PeerError>;

    /// Begins the final response. `keep`: the client may send another request afterwards.
    fn begin(&mut self, head: &ResponseHead, keep: bool) -> Result<(), PeerError>;

    /// The memory in bytes that a response takes while it waits for its client, besides the buffered bytes. 0 in
    /// HTTP/1.1, where the limit of connections bounds it.
    fn task_bytes(&self) -> usize {
        0
    }

    /// The sent part of the response, for the access log.
    fn sent(&self) -> Sent;
}

/// The part of a response that was sent or buffered, for the access log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The HTTP version of the client.
    pub(crate) protocol: &'static str,
    /// Whether the head of the final response was sent.
    pub(crate) has_begun: bool,
    /// Bytes of the body, without chunk sizes.
    pub(crate) body_bytes: u64,
}

/// The body of a forwarded request.
pub(crate) trait Forward: Sink {
    /// Ends the request early: closes the connection for writing, or resets the stream. Returns whether the response
    /// can still be read, so that the gate sees when the backend finishes.
    async fn break_off(&mut self) -> bool;
}

/// The response of a backend.
pub(crate) trait BackendAnswer: Source {
    /// Reads the next head: of an interim response, or of the final one.
    async fn head(&mut self, head: &mut ResponseHead) -> Result<(), PeerError>;

    /// Whether any byte has come, which shows that the backend has seen the request.
    fn has_begun(&self) -> bool;

    /// Whether the head of the final response has come.
    fn has_head(&self) -> bool;
}

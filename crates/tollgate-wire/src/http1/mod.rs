//! Strict HTTP/1.1 parsing for a proxy. The gate and the HTTP door parse messages with it. For HTTP/2, the gate fills
//! the same [`RequestHead`] and [`ResponseHead`].
//!
//! A reverse proxy and its backend parse the same bytes. If they disagree on the end of a message, a client
//! can hide a second request in the first (request smuggling). General HTTP libraries are lenient: they drop
//! a `Content-Length` that follows a `Transfer-Encoding`, accept a bare LF as a line end, and leave `Host` to
//! the application. Dropped information cannot be checked afterwards. The framing rules are therefore here,
//! pure and fuzzable, on top of [`httparse`] for the tokens. Ambiguous messages are rejected, and forwarded
//! messages are serialized from the parsed form.
//!
//! - [`scan`] finds the end of a head in bytes that arrive in pieces, in linear time.
//! - [`fields`] stores header fields, and [`hop_by_hop`] removes those for this hop only.
//! - [`request`] and [`response`] parse heads and determine the length of the body.
//! - [`chunked`] decodes and encodes the chunked coding.

pub mod chunked;
pub mod fields;
pub mod hop_by_hop;
pub mod request;
pub mod response;
pub mod scan;

pub use crate::decimal::parse as content_length;
pub use fields::{Fields, Name};
pub use request::RequestHead;
pub use response::ResponseHead;

/// The HTTP/1 version of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunked coding, connections close unless asked not to.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// The length of a message body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// There is no body.
    #[default]
    Empty,
    /// This many bytes.
    Fixed(u64),
    /// Chunked, with optional trailers.
    Chunked,
    /// Until the connection closes (responses only).
    UntilClose,
}

/// The reason why a request is rejected before any rule is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 400: the bytes are not a request, or are ambiguous. The text describes the problem.
    Malformed(&'static str),
    /// 414: the request line exceeds the limit.
    TargetTooLong,
    /// 431: the head or its number of fields exceeds the limit.
    HeadTooLarge,
    /// 501: a transfer coding or method that a gate does not support.
    NotImplemented(&'static str),
    /// 505: not a version of HTTP/1.
    VersionNotSupported,
}

impl Fault {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TargetTooLong => 414,
            Self::HeadTooLarge => 431,
            Self::NotImplemented(_) => 501,
            Self::VersionNotSupported => 505,
        }
    }

    /// The error message for the client.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Malformed(detail) | Self::NotImplemented(detail) => detail,
            Self::TargetTooLong => "the request target is too long",
            Self::HeadTooLarge => "the header fields are too large or too many",
            Self::VersionNotSupported => "only HTTP/1.0 and HTTP/1.1 are supported on this connection",
        }
    }
}

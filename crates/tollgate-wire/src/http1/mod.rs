//! HTTP/1.1 messages as a proxy must read them: exactly, or not at all.
//!
//! A reverse proxy and its backend read the same bytes one after the other. Wherever the two could disagree on where a
//! message ends, a client can hide a second request in the first (request smuggling). General HTTP libraries are made to be
//! lenient: they drop a `Content-Length` that follows a `Transfer-Encoding`, take bare LF for a line end and leave `Host` to
//! the application. What they drop cannot be checked afterwards. So the framing rules live here, in one place, pure and
//! fuzzable, on top of [`httparse`] for the tokens. Whatever is doubtful is refused, and what is forwarded is written afresh.
//!
//! - [`scan`] finds the end of a head in bytes that arrive in pieces, in linear time.
//! - [`fields`] holds header fields, and [`hop_by_hop`] removes those that are for this hop only.
//! - [`request`] and [`response`] parse heads and say how long the body is.
//! - [`chunked`] reads and writes the chunked coding.

pub mod chunked;
pub mod fields;
pub mod hop_by_hop;
pub mod request;
pub mod response;
pub mod scan;

pub use fields::{Fields, Name};
pub use request::RequestHead;
pub use response::ResponseHead;

/// The version of HTTP/1 that a peer speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunked coding, connections close unless asked not to.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// Where the body of a message ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// There is no body.
    #[default]
    Empty,
    /// It is this many bytes long.
    Fixed(u64),
    /// It is in chunks, and may be followed by trailers.
    Chunked,
    /// It ends when the connection does (responses only).
    UntilClose,
}

/// Why a request is turned away before anybody is asked about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 400: the bytes are not a request, or could be read in two ways. The text says what is wrong.
    Malformed(&'static str),
    /// 414: the request line is longer than the bound.
    TargetTooLong,
    /// 431: the head is longer than the bound or has more fields than the bound.
    HeadTooLarge,
    /// 501: a transfer coding or method that a gate does not forward.
    NotImplemented(&'static str),
    /// 505: not a version of HTTP/1.
    VersionNotSupported,
}

impl Fault {
    /// The status that tells the client.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TargetTooLong => 414,
            Self::HeadTooLarge => 431,
            Self::NotImplemented(_) => 501,
            Self::VersionNotSupported => 505,
        }
    }

    /// What is wrong, for the client to read.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Malformed(detail) | Self::NotImplemented(detail) => detail,
            Self::TargetTooLong => "the request target is too long",
            Self::HeadTooLarge => "the header fields are too large or too many",
            Self::VersionNotSupported => "only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here",
        }
    }
}

/// A `Content-Length` that leaves no doubt: digits and nothing else, and small enough to count in.
pub fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut length = 0u64;
    for digit in value {
        length = length.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(length)
}

//! Refusals as gRPC clients read them.
//!
//! gRPC has a status of its own: an HTTP error is only mapped to `UNAVAILABLE` or `UNKNOWN`, and when to come back is lost. So a refusal is a
//! *trailers-only* answer: HTTP 200 without a body, whose head has what trailers would have.

/// `RESOURCE_EXHAUSTED`: the caller is over a limit of its own.
pub const RESOURCE_EXHAUSTED: &str = "8";
/// `UNAVAILABLE`: the service cannot take the call now.
pub const UNAVAILABLE: &str = "14";
/// The value of [`PUSHBACK`] that tells a client not to retry (gRFC A6).
pub const NO_RETRY: &str = "-1";

/// The status of the call.
pub const STATUS: &str = "grpc-status";
/// What people are told, percent-encoded ASCII.
pub const MESSAGE: &str = "grpc-message";
/// When to retry, in milliseconds.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether this content type is that of gRPC or gRPC-Web, in any encoding: `application/grpc`, `application/grpc+proto`,
/// `application/grpc-web-text`.
pub fn is_grpc(content_type: &[u8]) -> bool {
    const NAME: &[u8] = b"application/grpc";
    let Some((name, rest)) = content_type.split_at_checked(NAME.len()) else { return false };
    name.eq_ignore_ascii_case(NAME)
        && (rest.first().is_none_or(|byte| matches!(byte, b'+' | b';' | b' '))
            || rest.get(..4).is_some_and(|web| web.eq_ignore_ascii_case(b"-web")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_known_by_its_content_type() {
        for text in ["application/grpc", "Application/GRPC+proto", "application/grpc;x=y", "application/grpc-web-text"]
        {
            assert!(is_grpc(text.as_bytes()), "{text}");
        }
        for text in ["", "application/json", "application/grpcx", "application/gr", "text/grpc"] {
            assert!(!is_grpc(text.as_bytes()), "{text}");
        }
    }
}

//! The header names and values of a refusal for a gRPC client. The gate and the tower layer of the gatekeeper use them.
//!
//! gRPC has its own status. Clients map an HTTP error to `UNAVAILABLE` or `UNKNOWN` and ignore its `Retry-After`. A
//! refusal is therefore a *trailers-only* response: HTTP 200 without a body, with the trailers in the head.

/// `RESOURCE_EXHAUSTED`: the caller is over its own limit.
pub const RESOURCE_EXHAUSTED: &str = "8";
/// `UNAVAILABLE`: the service cannot accept the call now.
pub const UNAVAILABLE: &str = "14";
/// The value of [`PUSHBACK`] for "do not retry" (gRFC A6).
pub const NO_RETRY: &str = "-1";

/// The trailer with the status of the call, such as [`UNAVAILABLE`].
pub const STATUS: &str = "grpc-status";
/// The trailer with the error message, percent-encoded ASCII.
pub const MESSAGE: &str = "grpc-message";
/// The trailer with the delay before a retry, in milliseconds, or [`NO_RETRY`].
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether this content type is gRPC or gRPC-Web, in any encoding: `application/grpc`,
/// `application/grpc+proto`, `application/grpc-web-text`.
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
    fn grpc_is_recognized_by_its_content_type() {
        for text in ["application/grpc", "Application/GRPC+proto", "application/grpc;x=y", "application/grpc-web-text"]
        {
            assert!(is_grpc(text.as_bytes()), "{text}");
        }
        for text in ["", "application/json", "application/grpcx", "application/gr", "text/grpc"] {
            assert!(!is_grpc(text.as_bytes()), "{text}");
        }
    }
}

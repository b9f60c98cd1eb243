//! Groups paths that differ only in an identifier into one route.
//!
//! `/user/7/posts` and `/user/8/posts` have the same cost and share a limit. If they were separate keys, a
//! crawler would get a fresh limit for every page.

/// Replaces an identifier in a route.
const PLACEHOLDER: &[u8] = b":id";
/// The number of segments that a route keeps; the rest becomes `*`. Clients choose the length of a path.
const SEGMENTS_MAX: usize = 16;

/// Passes the parts of the route of `path` to `write`, in order.
pub fn write_route(path: &[u8], mut write: impl FnMut(&[u8])) {
    let mut segments = path.split(|&byte| byte == b'/');
    // The part before the first slash is empty, or the path has no slash.
    if let Some(first) = segments.next() {
        write(first);
    }
    for segment in segments.by_ref().take(SEGMENTS_MAX) {
        write(b"/");
        write(if is_identifier(segment) { PLACEHOLDER } else { segment });
    }
    if segments.next().is_some() {
        write(b"/*");
    }
}

/// Returns whether a segment is a number, a hash or a UUID: digits only, or at least eight hexadecimal digits
/// and dashes, one of them a decimal digit.
fn is_identifier(segment: &[u8]) -> bool {
    if segment.is_empty() {
        return false;
    }
    let digits = segment.iter().filter(|byte| byte.is_ascii_digit()).count();
    digits == segment.len()
        || (digits > 0 && segment.len() >= 8 && segment.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn route(path: &str) -> String {
        let mut text = String::new();
        write_route(path.as_bytes(), |piece| text.push_str(core::str::from_utf8(piece).unwrap()));
        text
    }

    #[test]
    fn identifiers_are_replaced_and_words_are_kept() {
        assert_eq!(route("/user/7/posts"), "/user/:id/posts");
        assert_eq!(route("/b/550e8400-e29b-41d4-a716-446655440000"), "/b/:id");
        assert_eq!(route("/c/deadbeef00"), "/c/:id");
        assert_eq!(route("/decade/feedback"), "/decade/feedback");
        assert_eq!(route("/a/b-c/2024-report"), "/a/b-c/2024-report");
        assert_eq!(route("/"), "/");
        assert_eq!(route(""), "");
        assert_eq!(route("*"), "*");
    }

    #[test]
    fn a_very_long_path_is_one_route() {
        let long = "/a".repeat(1000);
        assert_eq!(route(&long), alloc::format!("{}/*", "/a".repeat(16)));
    }
}

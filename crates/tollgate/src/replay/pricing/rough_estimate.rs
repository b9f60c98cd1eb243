//! A rough cost of a request without a duration, from its method, path, status and size (`--estimate`).
//!
//! The numbers are those of ordinary sites on current machines. They are right within a factor of ten, so totals mean
//! little, but clients can be compared: a search costs more than a picture.

use tollgate_core::request::Request as _;
use tollgate_core::time::Span;
use tollgate_wire::log::Request;

/// A file that a web server sends by itself.
const FILE: Span = Span::from_nanos(300_000);
/// A page that a program makes.
const PAGE: Span = Span::from_millis(20);
/// The additional cost of a query or of a request that changes something.
const QUERY: Span = Span::from_millis(20);
/// An answer without content: not modified, a redirect, or an error.
const EMPTY: Span = Span::from_millis(2);
/// The additional cost of 64 KiB of a page.
const PER_64_KIB: Span = Span::from_millis(2);
/// The size of larger responses counts only up to this: they are downloads, whose cost does not grow with their size.
const BYTES_MAX: u64 = 4 << 20;

/// The ends of paths of such files, in lower case.
const FILE_ENDINGS: [&[u8]; 20] = [
    b".css", b".js", b".mjs", b".map", b".png", b".jpg", b".jpeg", b".gif", b".svg", b".webp", b".avif", b".ico",
    b".woff", b".woff2", b".ttf", b".mp4", b".pdf", b".zip", b".txt", b".xml",
];

/// The rough cost of a request.
pub(crate) fn rough_estimate(request: &Request<'_>) -> Span {
    let path = request.path().to_ascii_lowercase();
    if FILE_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
        return FILE;
    }
    if request.status.is_some_and(|status| !(200..300).contains(&status)) {
        return EMPTY;
    }
    let is_change = matches!(request.method, Some(method) if method != b"GET" && method != b"HEAD");
    let has_query = request.target().contains(&b'?');
    let pieces = request.body_bytes.unwrap_or(0).min(BYTES_MAX) / (64 << 10);
    PAGE + PER_64_KIB.times(pieces) + if is_change || has_query { QUERY } else { Span::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_wire::log::{Format, Line, Parser};

    fn millis(request: &str, status: u16, bytes: &str) -> f64 {
        let line = format!("192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"{request} HTTP/1.1\" {status} {bytes}");
        let mut parser = Parser::new();
        let Ok(Line::Request(request)) = parser.parse(Format::Combined, line.as_bytes()) else { panic!("{line}") };
        rough_estimate(&request).as_nanos() as f64 / 1e6
    }

    #[test]
    fn pages_cost_more_than_files_and_searches_more_than_pages() {
        assert_eq!(millis("GET /logo.PNG", 200, "90000"), 0.3);
        assert_eq!(millis("GET /", 200, "-"), 20.0);
        assert_eq!(millis("GET /?q=x", 200, "131072"), 44.0);
        assert_eq!(millis("POST /cart", 200, "5"), 40.0);
        assert_eq!(millis("GET /", 304, "0"), 2.0);
        assert_eq!(millis("GET /", 200, "18446744073709551615"), 148.0);
    }
}

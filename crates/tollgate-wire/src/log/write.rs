//! Writes the lines of the gate's access log, in a form that [`Parser`](super::Parser) reads back.
//!
//! Method, target and header values come from clients. Every byte that could end a field or a line, or that a terminal
//! could interpret, is escaped. A field has at most [`FIELD_BYTES_MAX`] bytes before escaping, so that the longest line
//! is shorter than [`LINE_BYTES_MAX`](super::LINE_BYTES_MAX).

use core::net::IpAddr;
use std::io::Write as _;

use tollgate_core::time::{Moment, Span};

use super::date::{MONTHS, civil};

/// The maximum number of bytes of one field that are written; the rest is cut off.
pub(super) const FIELD_BYTES_MAX: usize = 4096;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub struct AccessEntry<'a> {
    /// The time at which the request arrived, since 1970.
    pub at: Moment,
    /// The address of the client.
    pub client: IpAddr,
    /// The request; none if it could not be parsed.
    pub request: Option<RequestLine<'a>>,
    /// The status of the response; 499 if the client left before it.
    pub status: u16,
    /// Bytes of the response body.
    pub body_bytes: u64,
    /// The time from the arrival of the request to the end of the response.
    pub duration: Span,
    /// The time for which rules and the queue held the request.
    pub wait: Span,
    /// The CPU time charged; none if the request did not reach a backend.
    pub cost: Option<Span>,
    /// The decision about the request, such as `admit`.
    pub decision: &'a str,
    /// The reason for the decision.
    pub reason: &'a str,
    /// The rule that decided; none for the queue.
    pub rule: Option<&'a str>,
}

/// The parts of a request that are logged.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a [u8],
    /// The target, with its query.
    pub target: &'a [u8],
    /// The protocol version, such as `HTTP/1.1`.
    pub version: &'a str,
    /// The host that the request is for.
    pub host: &'a [u8],
    /// The `Referer` header.
    pub referer: Option<&'a [u8]>,
    /// The `User-Agent` header.
    pub user_agent: Option<&'a [u8]>,
}

impl AccessEntry<'_> {
    /// Appends a line in the combined format, followed by `rt=` (the duration) and `cost=`, both in seconds.
    pub fn write_combined(&self, out: &mut Vec<u8>) {
        let at = civil(self.at);
        let month = MONTHS[at.month() as usize - 1];
        put(out, format_args!("{} - - [{:02}/{month}/{:04}:", self.client, at.day(), at.year()));
        put(out, format_args!("{:02}:{:02}:{:02} +0000] \"", at.hour(), at.minute(), at.second()));
        match &self.request {
            Some(request) => {
                escape(request.method, out);
                out.push(b' ');
                escape(request.target, out);
                out.push(b' ');
                out.extend_from_slice(request.version.as_bytes());
            }
            None => out.push(b'-'),
        }
        put(out, format_args!("\" {} {} ", self.status, self.body_bytes));
        let header = |value: Option<&[u8]>, out: &mut Vec<u8>| {
            out.push(b'"');
            escape(value.unwrap_or(b"-"), out);
            out.extend_from_slice(b"\" ");
        };
        header(self.request.and_then(|request| request.referer), out);
        header(self.request.and_then(|request| request.user_agent), out);
        let duration_ms = self.duration.as_nanos() / 1_000_000;
        put(out, format_args!("rt={}.{:03} cost=", duration_ms / 1000, duration_ms % 1000));
        match self.cost.map(|cost| cost.as_nanos() / 1000) {
            Some(cost_us) => put(out, format_args!("{}.{:06}\n", cost_us / 1_000_000, cost_us % 1_000_000)),
            None => out.extend_from_slice(b"-\n"),
        }
    }

    /// Appends a line with one JSON object.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        put(out, format_args!("{{\"time\":\"{:.3}Z\",\"client_ip\":\"{}\"", civil(self.at), self.client));
        if let Some(request) = &self.request {
            text("method", Some(request.method), out);
            text("host", Some(request.host), out);
            text("uri", Some(request.target), out);
            text("protocol", Some(request.version.as_bytes()), out);
        }
        put(out, format_args!(",\"status\":{},\"body_bytes\":{}", self.status, self.body_bytes));
        for (name, span) in [("duration_ms", Some(self.duration)), ("wait_ms", Some(self.wait)), ("cost_ms", self.cost)]
        {
            match span.map(|span| span.as_nanos() / 1000) {
                Some(micros) => put(out, format_args!(",\"{name}\":{}.{:03}", micros / 1000, micros % 1000)),
                None => put(out, format_args!(",\"{name}\":null")),
            }
        }
        text("decision", Some(self.decision.as_bytes()), out);
        text("reason", Some(self.reason.as_bytes()), out);
        text("rule", self.rule.map(str::as_bytes), out);
        if let Some(request) = &self.request {
            text("referer", request.referer, out);
            text("user_agent", request.user_agent, out);
        }
        out.extend_from_slice(b"}\n");
    }
}

fn put(out: &mut Vec<u8>, arguments: core::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(arguments);
}

fn bounded(value: &[u8]) -> &[u8] {
    &value[..value.len().min(FIELD_BYTES_MAX)]
}

/// Appends a value of the combined format as Apache and nginx escape it.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    for byte in bounded(value) {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            b' '..=b'~' => out.push(*byte),
            _ => out.extend([b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

/// Appends a field of a JSON object. A byte that is not UTF-8 is written as the character with that number, so that
/// different values stay different.
fn text(name: &str, value: Option<&[u8]>, out: &mut Vec<u8>) {
    put(out, format_args!(",\"{name}\":"));
    let Some(value) = value else { return out.extend_from_slice(b"null") };
    out.push(b'"');
    for chunk in bounded(value).utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => out.extend([b'\\', character as u8]),
                // The controls of C0 and C1, DEL, and the two separators that JavaScript takes for line ends.
                '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                    put(out, format_args!("\\u{:04x}", u32::from(character)));
                }
                character => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            put(out, format_args!("\\u{byte:04x}"));
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Format, LINE_BYTES_MAX, Line, Parser, Request};
    use super::*;
    use proptest::prelude::*;

    fn entry() -> AccessEntry<'static> {
        AccessEntry {
            at: Moment::from_millis(1_794_826_187_123),
            client: "203.0.113.7".parse().unwrap(),
            request: Some(RequestLine {
                method: b"GET",
                target: b"/a?b=c",
                version: "HTTP/1.1",
                host: b"shop.example",
                referer: None,
                user_agent: Some(b"Mozilla/5.0 (X11)"),
            }),
            status: 200,
            body_bytes: 512,
            duration: Span::from_nanos(1_234_567_890),
            wait: Span::from_millis(1_000),
            cost: Some(Span::from_nanos(12_345_678)),
            decision: "hold",
            reason: "backend-busy",
            rule: None,
        }
    }

    fn written(format: Format, entry: &AccessEntry<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        match format {
            Format::Combined => entry.write_combined(&mut out),
            _ => entry.write_json(&mut out),
        }
        assert_eq!(out.pop(), Some(b'\n'));
        assert!(!out.contains(&b'\n') && out.len() < LINE_BYTES_MAX);
        out
    }

    fn read_back(format: Format, entry: &AccessEntry<'_>, check: impl FnOnce(Request<'_>)) {
        let line = written(format, entry);
        assert_eq!(Format::detect(&line), Some(format));
        match Parser::new().parse(format, &line) {
            Ok(Line::Request(request)) => check(request),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(&line)),
        }
    }

    #[test]
    fn lines_have_the_documented_form() {
        assert_eq!(
            String::from_utf8(written(Format::Combined, &entry())).unwrap(),
            r#"203.0.113.7 - - [16/Nov/2026:10:49:47 +0000] "GET /a?b=c HTTP/1.1" 200 512 "-" "Mozilla/5.0 (X11)" rt=1.234 cost=0.012345"#
        );
        assert_eq!(
            String::from_utf8(written(Format::Json, &entry())).unwrap(),
            concat!(
                r#"{"time":"2026-11-16T10:49:47.123Z","client_ip":"203.0.113.7","method":"GET","host":"shop.example","uri":"/a?b=c","#,
                r#""protocol":"HTTP/1.1","status":200,"body_bytes":512,"duration_ms":1234.567,"wait_ms":1000.000,"cost_ms":12.345,"#,
                r#""decision":"hold","reason":"backend-busy","rule":null,"referer":null,"user_agent":"Mozilla/5.0 (X11)"}"#
            )
        );
    }

    #[test]
    fn the_cost_and_the_duration_are_read_back() {
        for format in [Format::Combined, Format::Json] {
            read_back(format, &entry(), |request| {
                assert_eq!(request.cost, Some(Span::from_nanos(12_345_000)), "{format:?}");
                assert_eq!(request.duration.map(|span| span.as_nanos() / 1_000_000), Some(1234), "{format:?}");
                assert_eq!(request.client, Client::Address("203.0.113.7".parse().unwrap()));
                assert_eq!((request.method, request.target), (Some(&b"GET"[..]), Some(&b"/a?b=c"[..])));
                assert_eq!(request.status, Some(200));
                assert_eq!(request.at.as_nanos() / 1_000_000_000, 1_794_826_187);
            });
            let refused = AccessEntry { cost: None, status: 429, ..entry() };
            read_back(format, &refused, |request| assert_eq!(request.cost, None, "{format:?}"));
        }
    }

    #[test]
    fn a_request_that_cannot_be_parsed_has_a_line() {
        let malformed = AccessEntry { request: None, status: 400, cost: None, ..entry() };
        for format in [Format::Combined, Format::Json] {
            read_back(format, &malformed, |request| {
                assert_eq!((request.method, request.target, request.status), (None, None, Some(400)));
            });
        }
    }

    proptest! {
        #[test]
        fn a_client_cannot_write_a_line_of_its_own(
            target in proptest::collection::vec(any::<u8>(), 1..200),
            agent in proptest::collection::vec(any::<u8>(), 1..5000),
        ) {
            let mut entry = entry();
            let request = RequestLine { target: &target, user_agent: Some(&agent), referer: Some(&agent), host: &agent, ..entry.request.unwrap() };
            entry.request = Some(request);
            let seen = &agent[..agent.len().min(FIELD_BYTES_MAX)];
            read_back(Format::Combined, &entry, |request| {
                assert_eq!(request.status, Some(200));
                assert_eq!(request.cost, Some(Span::from_nanos(12_345_000)));
                if seen != b"-" {
                    assert_eq!(request.headers.first(b"user-agent"), Some(seen));
                }
            });
            assert!(written(Format::Combined, &entry).iter().all(|byte| (b' '..=b'~').contains(byte)));
            let line = written(Format::Json, &entry);
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["status"], 200);
            if let Ok(text) = str::from_utf8(seen) {
                assert_eq!(value["user_agent"], text);
            }
            assert!(line.iter().all(|byte| *byte >= b' ' && *byte != 0x7f));
        }
    }
}

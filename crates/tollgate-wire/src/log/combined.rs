//! Parses the combined log format of Apache and nginx, the common format, and usual extensions of both.
//!
//! ```text
//! 203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 2326 "http://example.org/" "Mozilla/5.0" 0.123
//! ```
//!
//! The fields before the time and after the user agent vary between sites. The parser therefore starts from
//! two anchors, the bracketed time and the quoted request, instead of counting fields. The request may be
//! garbage, such as a TLS handshake on a plain port or an idle connection that timed out. It still used the
//! server, so it becomes a request without method and target, not an error.

use tollgate_core::time::Span;

use super::client::Client;
use super::date;
use super::decimal::Decimal;
use super::request::{Draft, Request};
use super::scanner::plain_length;
use super::text::{List, Scratch, Text};
use super::{Expected, LineError};

/// Parses one line.
pub(super) fn parse<'a>(line: &'a [u8], scratch: &'a mut Scratch) -> Result<Request<'a>, LineError> {
    let line = line.trim_ascii_end();
    let mut draft = Draft::default();
    let (open, behind) = bracketed_time(line, &mut draft)?;
    draft.client = Some(client(line, open));
    let mut cursor = Cursor { line, at: behind };
    let Some(request) = cursor.quoted(scratch) else {
        return Err(LineError::at(cursor.at, Expected::QuotedRequest));
    };
    request_line(request, line, scratch, &mut draft);
    let (column, text) = cursor.plain();
    draft.status = status(text).map_err(|()| LineError::at(column, Expected::Status))?;
    let (column, size) = cursor.plain();
    if !(size == b"-" || (!size.is_empty() && size.iter().all(u8::is_ascii_digit))) {
        return Err(LineError::at(column, Expected::Size));
    }
    draft.body_bytes = Decimal::parse(size).and_then(|bytes| bytes.scaled(0));
    for name in ["referer", "user-agent"] {
        if let Some(value) = cursor.quoted(scratch).filter(|value| scratch.bytes(*value, line) != b"-") {
            scratch.add_named(List::Headers, name, value, line.len())?;
        }
    }
    appended(&mut cursor, scratch, &mut draft)?;
    draft.finish(line, scratch, Expected::BracketedTime)
}

/// Finds the time and stores it in `draft`. Returns the positions of the opening bracket and of the text after the
/// closing one. A user name may contain brackets and spaces, so every opening bracket is tried.
fn bracketed_time(line: &[u8], draft: &mut Draft) -> Result<(usize, usize), LineError> {
    let mut from = 0;
    while let Some(open) = line[from..].iter().position(|byte| *byte == b'[').map(|offset| from + offset) {
        if let Some((text, b"]")) = line.get(open + 1..open + 28).and_then(|inside| inside.split_at_checked(26)) {
            draft.at = date::common(text);
            if draft.at.is_some() {
                return Ok((open, open + 28));
            }
        }
        from = open + 1;
    }
    Err(LineError::at(line.iter().position(|byte| *byte == b'[').unwrap_or(line.len()), Expected::BracketedTime))
}

/// The client, from the fields before `end`: the first field, or in a log of several hosts (`host:port client - -`) the
/// second.
fn client(line: &[u8], end: usize) -> Text {
    let first = word(line, 0, end);
    let second = word(line, first.1 + 1, end);
    let third = word(line, second.1 + 1, end);
    let fourth = word(line, third.1 + 1, end);
    let is_address = |(start, end): (usize, usize)| matches!(Client::parse(&line[start..end]), Client::Address(_));
    let several_hosts = fourth.0 < fourth.1 && !is_address(first) && is_address(second);
    let (start, end) = if several_hosts { second } else { first };
    Text::in_line(start, end)
}

/// The field from `start` to the next space, as indices that are at most `end`.
fn word(line: &[u8], start: usize, end: usize) -> (usize, usize) {
    let start = start.min(end);
    let length = line[start..end].iter().position(|byte| *byte == b' ').unwrap_or(end - start);
    (start, start + length)
}

fn status(text: &[u8]) -> Result<Option<u16>, ()> {
    match text {
        b"-" => Ok(None),
        [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Ok(Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')))
        }
        _ => Err(()),
    }
}

/// Splits `METHOD target HTTP/x` and stores method and target in `draft`, unless it is something else. A target may
/// contain spaces, which some clients send and servers log.
pub(super) fn request_line(request: Text, line: &[u8], scratch: &Scratch, draft: &mut Draft) {
    let bytes = scratch.bytes(request, line);
    let Some(blank) = bytes.iter().take(33).position(|byte| *byte == b' ') else {
        return;
    };
    let is_method = blank > 0 && bytes[..blank].iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
    let end = match bytes.iter().rposition(|byte| *byte == b' ') {
        Some(last) if last > blank && bytes[last + 1..].starts_with(b"HTTP/") => last,
        _ => bytes.len(),
    };
    if is_method && end > blank + 1 {
        draft.method = Some(request.slice(0, blank));
        draft.target = Some(request.slice(blank + 1, end));
    }
}

/// The certainty that a field after the user agent is the duration of the request, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    /// A single integer: Apache's `%D`, in microseconds.
    LoneNumber,
    /// A number with a decimal point: nginx's `$request_time`, in seconds.
    Fraction,
    /// `rt=0.123` and similar.
    Named,
    /// `urt=0.123` and similar: the backend's time, without slow clients.
    Backend,
    /// `12ms`, as in Traefik's logs.
    Unit,
}

/// Parses the fields after the user agent: the duration and the cost, at any position, and forwarded addresses in the
/// first one.
fn appended(cursor: &mut Cursor<'_>, scratch: &mut Scratch, draft: &mut Draft) -> Result<(), LineError> {
    let mut best: Option<(Certainty, Span)> = None;
    let mut words = 0;
    while let Some(text) = cursor.next_field(scratch) {
        words += 1;
        let word = scratch.bytes(text, cursor.line);
        if let Some(cost) = word.strip_prefix(b"cost=") {
            // Only a gate writes this. `cost=-` is a request that did not reach a backend.
            (draft.cost, draft.is_measured) = (seconds(cost), true);
            continue;
        }
        if word.starts_with(b"ticket=") {
            let ticket = text.slice(7, word.len());
            scratch.add_named(List::Attributes, "ticket", ticket, cursor.line.len())?;
            continue;
        }
        if let Some(found) = time_taken(word).filter(|found| best.is_none_or(|best| found.0 > best.0)) {
            best = Some(found);
        } else if words == 1
            && word
                .split(|byte| matches!(byte, b',' | b' '))
                .any(|part| matches!(Client::parse(part), Client::Address(_)))
        {
            scratch.add_named(List::Headers, "x-forwarded-for", text, cursor.line.len())?;
        }
    }
    draft.duration = best.filter(|best| best.0 > Certainty::LoneNumber || words == 1).map(|best| best.1);
    Ok(())
}

/// The duration in a field, if it may be one.
fn time_taken(word: &[u8]) -> Option<(Certainty, Span)> {
    if let Some(equals) = word.iter().take(32).position(|byte| *byte == b'=') {
        let sure = match &word[..equals] {
            b"urt" | b"upstream_response_time" => Certainty::Backend,
            b"rt" | b"request_time" | b"time" | b"duration" => Certainty::Named,
            _ => return None,
        };
        let value = word[equals + 1..].trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        return seconds(value).map(|span| (sure, span));
    }
    let (number, length) = Decimal::prefix(word)?;
    let span = |shift| number.scaled(shift).map(Span::from_nanos);
    match &word[length..] {
        b"ms" => Some((Certainty::Unit, span(6)?)),
        b"us" => Some((Certainty::Unit, span(3)?)),
        b"s" => Some((Certainty::Unit, span(9)?)),
        b"" if word.contains(&b'.') => Some((Certainty::Fraction, span(9)?)),
        b"" => Some((Certainty::LoneNumber, span(3)?)),
        _ => None,
    }
}

/// A duration in seconds. nginx writes several, separated by commas or colons, if it tried more than one backend; the
/// result is their sum.
pub(super) fn seconds(text: &[u8]) -> Option<Span> {
    let mut sum = None;
    for part in text.split(|byte| matches!(byte, b',' | b':')).map(<[u8]>::trim_ascii) {
        if !matches!(part, b"-" | b"") {
            sum = Some(sum.unwrap_or(Span::ZERO) + Span::from_nanos(Decimal::parse(part)?.scaled(9)?));
        }
    }
    sum
}

/// A position in the line, after the time.
struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn skip_blanks(&mut self) {
        while self.line.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    /// The position of the next field, and the field; empty at the end of the line.
    fn plain(&mut self) -> (usize, &'a [u8]) {
        self.skip_blanks();
        let (start, end) = word(self.line, self.at, self.line.len());
        self.at = end;
        (start, &self.line[start..end])
    }

    /// The next field, quoted or not; `None` at the end of the line.
    fn next_field(&mut self, scratch: &mut Scratch) -> Option<Text> {
        if let Some(text) = self.quoted(scratch) {
            return Some(text);
        }
        let (start, mut end) = word(self.line, self.at, self.line.len());
        // `urt="0.001, 0.002"` is one field.
        if self.line[start..end].windows(2).any(|two| two == b"=\"") && self.line[..end].last() != Some(&b'"') {
            let rest = self.line[end..].iter().position(|byte| *byte == b'"');
            end = rest.map_or(end, |offset| end + offset + 1);
        }
        self.at = end;
        (start < end).then_some(Text::in_line(start, end))
    }

    /// The next field if it is quoted. A quote ends it only before a space or at the end of the line, because
    /// some servers do not escape quotes.
    fn quoted(&mut self, scratch: &mut Scratch) -> Option<Text> {
        self.skip_blanks();
        if self.line.get(self.at) != Some(&b'"') {
            return None;
        }
        let start = self.at + 1;
        let (mut end, mut escaped) = (start, false);
        loop {
            end += plain_length(&self.line[end..]);
            match self.line.get(end)? {
                b'"' if matches!(self.line.get(end + 1), None | Some(b' ')) => break,
                b'\\' => {
                    escaped = true;
                    end += 2;
                }
                _ => end += 1,
            }
            if end > self.line.len() {
                return None;
            }
        }
        self.at = end + 1;
        let raw = &self.line[start..end];
        Some(if escaped { scratch.decode(|bytes| unescape(raw, bytes)) } else { Text::in_line(start, end) })
    }
}

/// Decodes `\"`, `\\`, `\xhh` and the C escapes, and keeps other backslashes.
fn unescape(mut raw: &[u8], bytes: &mut Vec<u8>) {
    let hex = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
    while let Some(slash) = raw.iter().position(|byte| *byte == b'\\') {
        bytes.extend_from_slice(&raw[..slash]);
        let (byte, length) = match &raw[slash + 1..] {
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), 4)
            }
            [plain @ (b'"' | b'\\' | b'\''), ..] => (*plain, 2),
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b't', ..] => (b'\t', 2),
            [b'v', ..] => (11, 2),
            [b'b', ..] => (8, 2),
            [b'f', ..] => (12, 2),
            _ => (b'\\', 1),
        };
        bytes.push(byte);
        raw = &raw[slash + length..];
    }
    bytes.extend_from_slice(raw);
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Line, Parser};
    use super::*;

    fn with_request(line: &str, check: impl FnOnce(Request<'_>)) {
        match Parser::new().parse(Format::Combined, line.as_bytes()) {
            Ok(Line::Request(request)) => check(request),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// A line with this request, and this text after the size.
    fn line(request: &str, appended: &str) -> String {
        format!(r#"203.0.113.7 - frank [10/Oct/2000:13:55:36 -0700] "{request}" 200 2326{appended}"#)
    }

    fn cost_ms(appended: &str) -> Option<f64> {
        let mut cost = None;
        let line = line("GET / HTTP/1.1", &format!(r#" "-" "x"{appended}"#));
        with_request(&line, |request| cost = request.cost.map(|cost| cost.as_nanos() as f64 / 1e6));
        cost
    }

    #[test]
    fn a_combined_line_is_read() {
        with_request(&line("GET /a?b HTTP/1.1", r#" "http://example.org/" "Mozilla/5.0 (X11)""#), |request| {
            assert_eq!(request.at.as_nanos(), 971_211_336_000_000_000);
            assert_eq!(request.client, Client::Address("203.0.113.7".parse().unwrap()));
            assert_eq!(request.method, Some(&b"GET"[..]));
            assert_eq!(request.target, Some(&b"/a?b"[..]));
            assert_eq!(request.status, Some(200));
            assert_eq!(request.headers.first(b"referer"), Some(&b"http://example.org/"[..]));
            assert_eq!(request.headers.first(b"user-agent"), Some(&b"Mozilla/5.0 (X11)"[..]));
            assert_eq!(request.cost, None);
        });
    }

    #[test]
    fn a_common_line_is_read() {
        with_request(&line("GET / HTTP/1.0", ""), |request| assert_eq!(request.headers.iter().count(), 0));
        with_request(r#"::1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 304 -"#, |request| {
            assert_eq!(request.client, Client::Address("::1".parse().unwrap()));
            assert_eq!(request.status, Some(304));
        });
    }

    #[test]
    fn the_time_taken_is_found_where_sites_put_it() {
        for (appended, expect) in [
            ("", None),
            (" 0.123", Some(123.0)),
            (r#" "0.123""#, Some(123.0)),
            (" 123456", Some(123.456)),
            (r#" "203.0.113.9" 0.050"#, Some(50.0)),
            (r#" rt=0.250 uct="0.000" uht="0.200" urt="0.200""#, Some(200.0)),
            (r#" rt=0.250 urt="0.100, 0.050""#, Some(150.0)),
            (r#" rt=0.250 urt="-""#, Some(250.0)),
            (r#" rt=0.250 urt=-"#, Some(250.0)),
            (" 512 0.040 [default-web-80] [] 10.0.0.3:8080 12 0.039 200 ab12", Some(40.0)),
            (r#" 5 "web@docker" "http://10.0.0.2:80" 12ms"#, Some(12.0)),
            (" 512 1024", None),
            (r#" "-""#, None),
            (" -", None),
        ] {
            assert_eq!(cost_ms(appended), expect, "{appended}");
        }
    }

    #[test]
    fn forwarded_addresses_behind_the_user_agent_are_a_header() {
        with_request(&line("GET / HTTP/1.1", r#" "-" "x" "198.51.100.3, 203.0.113.9""#), |request| {
            assert_eq!(request.headers.first(b"x-forwarded-for"), Some(&b"198.51.100.3, 203.0.113.9"[..]));
        });
    }

    #[test]
    fn escapes_and_stray_quotes_are_undone() {
        with_request(&line(r"GET /a\x22b\\c\x00 HTTP/1.1", r#" "-" "say \"hi\" \q\x4""#), |request| {
            assert_eq!(request.target, Some(&b"/a\"b\\c\0"[..]));
            assert_eq!(request.headers.first(b"user-agent"), Some(&br#"say "hi" \q\x4"#[..]));
        });
        with_request(&line("GET / HTTP/1.1", r#" "-" "a "raw" quote"s""#), |request| {
            assert_eq!(request.headers.first(b"user-agent"), Some(&br#"a "raw"#[..]));
        });
    }

    #[test]
    fn a_garbage_request_line_is_still_a_request() {
        for garbage in
            [r"\x16\x03\x01\x02\x00", "-", "", r"\n", "GET", " ", "GET  HTTP/1.1", "{}", &"A".repeat(100_000)]
        {
            with_request(&line(garbage, r#" "-" "-""#), |request| {
                assert_eq!((request.method, request.target), (None, None), "{garbage}");
                assert_eq!(request.headers.iter().count(), 0);
            });
        }
        with_request(&line("GET /a b HTTP/1.1", ""), |request| assert_eq!(request.target, Some(&b"/a b"[..])));
        with_request(&line("GET /old", ""), |request| assert_eq!(request.target, Some(&b"/old"[..])));
    }

    #[test]
    fn odd_user_and_host_names_are_parsed() {
        with_request(
            r#"www.example.org:443 203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5 "-" "x""#,
            |request| {
                assert_eq!(request.client, Client::Address("203.0.113.7".parse().unwrap()));
            },
        );
        with_request(r#"crawl.example.org - a b [c] [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5"#, |request| {
            assert_eq!(request.client, Client::Name(b"crawl.example.org"));
        });
        // The identd user looks like an address.
        with_request(
            r#"crawl.example.org 10.0.0.1 - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5"#,
            |request| {
                assert_eq!(request.client, Client::Name(b"crawl.example.org"));
            },
        );
    }

    #[test]
    fn an_invalid_line_gives_the_expected_item_and_its_position() {
        for (line, column, expected) in [
            ("", 1, Expected::BracketedTime),
            ("hello world", 12, Expected::BracketedTime),
            ("1.2.3.4 - - [yesterday] \"GET /\" 200 1", 13, Expected::BracketedTime),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700", 13, Expected::BracketedTime),
            (" - - [10/Oct/2000:13:55:36 -0700] \"GET /\" 200 1", 48, Expected::Client),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700]", 41, Expected::QuotedRequest),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] GET / 200 1", 42, Expected::QuotedRequest),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] \"GET / 200 1", 42, Expected::QuotedRequest),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] \"GET /\" OK 1", 50, Expected::Status),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] \"GET /\" 200", 53, Expected::Size),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] \"GET /\" 200 many", 54, Expected::Size),
            ("1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] \"GET /\\", 42, Expected::QuotedRequest),
        ] {
            let error = Parser::new().parse(Format::Combined, line.as_bytes()).unwrap_err();
            assert_eq!((error.column, error.expected), (column, expected), "{line}");
        }
    }
}

//! Access logs with one JSON object per line: nginx with any `log_format`, Caddy, Traefik, Envoy, and loggers
//! that follow ECS, Google's `httpRequest` or pino.
//!
//! There is no standard, but there are conventions. A table, [`meaning`], maps field names to meanings. If several
//! fields have the same meaning, the better one wins: the time at which the request started over the time at which
//! it ended, and the backend's duration over the total one. Only objects that the table contains are entered, so the
//! table bounds the depth.

use tollgate_core::time::Span;

use super::combined::{request_line, seconds};
use super::decimal::Decimal;
use super::request::{Draft, Request};
use super::scanner::Scanner;
use super::text::{List, Scratch, Text};
use super::{Expected, LineError, date, trace};

/// The meaning of a field. If several fields have the same meaning, the one with the highest rank, the `u8`, wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A time in any format.
    Time(u8),
    /// The client's address or name.
    Client(u8),
    Method,
    /// The path and query of the request.
    Target(u8),
    /// A complete request line, or an object about the request.
    Request,
    Status,
    /// The size of the response body.
    BodyBytes,
    /// The cost in milliseconds that a gate has measured and written to its own log.
    MeasuredCost,
    /// The duration of the request at the backend, or in total.
    Duration(u8, Unit),
    /// The ticket that a door of a gate returned when the proxy that wrote this log asked it about the request.
    Ticket,
    /// A header with this name.
    Header(&'static str),
    /// An object of headers.
    Headers,
    /// An object whose fields are in the table; it has no meaning of its own.
    Inside,
}

/// The unit of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
    Micros,
    Nanos,
    /// Milliseconds if it is an integer, seconds if it has a fraction, because the name is ambiguous.
    Ambiguous,
}

/// The meaning of a field. `path` is its name, after the names of the objects that contain it, joined by dots.
fn meaning(path: &[u8]) -> Option<Meaning> {
    use Meaning::{
        BodyBytes, Client, Duration, Header, Headers, Inside, MeasuredCost, Method, Request, Status, Target, Ticket,
        Time,
    };
    Some(match path {
        b"StartUTC" | b"start_time" => Time(3),
        b"StartLocal" | b"time_iso8601" | b"msec" | b"ts" | b"timestamp" | b"@timestamp" | b"datetime" => Time(2),
        b"time" | b"time_local" | b"date" => Time(1),

        b"client_ip" | b"request.client_ip" | b"client.ip" => Client(3),
        b"remote_addr" | b"remote_ip" | b"request.remote_ip" | b"ClientHost" | b"clientip" | b"clientIp"
        | b"client" | b"source.ip" => Client(2),
        b"httpRequest.remoteIp" | b"req.remoteAddress" | b"remote_host" | b"remoteAddr" | b"ip" => Client(2),
        b"ClientAddr" | b"request.remote_addr" | b"downstream_remote_address" | b"client_addr" => Client(1),

        b"request_method" | b"method" | b"RequestMethod" | b"request.method" | b"http.request.method" => Method,
        b"httpRequest.requestMethod" | b"req.method" | b"verb" => Method,

        b"request_uri" | b"x_envoy_original_path" => Target(3),
        b"uri"
        | b"path"
        | b"url"
        | b"RequestPath"
        | b"request.uri"
        | b"url.original"
        | b"httpRequest.requestUrl"
        | b"req.url" => Target(2),
        b"url.path" => Target(1),

        b"request" => Request,
        b"status" | b"DownstreamStatus" | b"response_code" | b"status_code" | b"http.response.status_code" => Status,
        b"httpRequest.status" | b"res.statusCode" => Status,
        b"body_bytes" | b"body_bytes_sent" | b"bytes_sent" | b"size" | b"DownstreamContentSize" => BodyBytes,
        b"httpRequest.responseSize" | b"http.response.body.bytes" | b"http.response.bytes" => BodyBytes,

        b"cost_ms" => MeasuredCost,
        b"OriginDuration" => Duration(2, Unit::Nanos),
        b"upstream_response_time" => Duration(2, Unit::Seconds),
        b"upstream_service_time" => Duration(2, Unit::Millis),
        b"request_time" | b"httpRequest.latency" => Duration(1, Unit::Seconds),
        b"Duration" | b"event.duration" => Duration(1, Unit::Nanos),
        b"responseTime" => Duration(1, Unit::Millis),
        b"duration" | b"latency" | b"elapsed" | b"response_time" => Duration(1, Unit::Ambiguous),

        b"user_agent" | b"userAgent" | b"agent" | b"user_agent.original" | b"httpRequest.userAgent" => {
            Header("user-agent")
        }
        b"referer" | b"referrer" | b"httpRequest.referer" => Header("referer"),
        b"host" | b"authority" | b"RequestHost" | b"request.host" | b"url.domain" => Header("host"),
        b"ticket" | b"tollgate_ticket" => Ticket,
        b"x_forwarded_for" | b"xff" => Header("x-forwarded-for"),
        b"headers" | b"request_headers" | b"request.headers" | b"req.headers" => Headers,

        b"http" | b"http.request" | b"http.response" | b"source" | b"event" | b"httpRequest" | b"req" | b"res" => {
            Inside
        }
        _ => return duration_with_unit(path),
    })
}

/// `duration_ms`, `request_time_us` and similar.
fn duration_with_unit(path: &[u8]) -> Option<Meaning> {
    let underscore = path.iter().rposition(|byte| *byte == b'_')?;
    let unit = match &path[underscore + 1..] {
        b"s" | b"sec" | b"secs" | b"seconds" => Unit::Seconds,
        b"ms" | b"msec" | b"millis" | b"milliseconds" => Unit::Millis,
        b"us" | b"usec" | b"micros" | b"microseconds" => Unit::Micros,
        b"ns" | b"nsec" | b"nanos" | b"nanoseconds" => Unit::Nanos,
        _ => return None,
    };
    let known = matches!(
        &path[..underscore],
        b"duration" | b"latency" | b"elapsed" | b"response_time" | b"request_time" | b"time_taken"
    );
    known.then_some(Meaning::Duration(1, unit))
}

/// Parses one line.
pub(super) fn parse<'a>(line: &'a [u8], scratch: &'a mut Scratch) -> Result<Request<'a>, LineError> {
    let mut scanner = Scanner::new(line);
    let mut findings = Findings::default();
    findings.object(&mut scanner, scratch, &Path::default())?;
    scanner.end()?;
    let Findings { draft, time_error, .. } = findings;
    match (draft.at, time_error) {
        (None, Some(error)) => Err(error),
        _ => draft.finish(line, scratch, Expected::Time),
    }
}

/// The values found so far, with their ranks.
#[derive(Default)]
struct Findings {
    draft: Draft,
    time_rank: u8,
    client_rank: u8,
    target_rank: u8,
    duration_rank: u8,
    time_error: Option<LineError>,
}

/// A number or a text.
enum Scalar {
    Number(Decimal),
    Text(Text),
}

impl Findings {
    fn object(&mut self, scanner: &mut Scanner<'_>, scratch: &mut Scratch, parent: &Path) -> Result<(), LineError> {
        scanner.enter_object()?;
        while let Some(name) = scanner.next_field(scratch)? {
            let path = parent.join(scratch.bytes(name, scanner.line));
            let Some(meaning) = path.as_ref().and_then(|path| meaning(path.bytes())) else {
                self.other(name, scanner, scratch)?;
                continue;
            };
            match (meaning, path, scanner.peek()) {
                (Meaning::Headers, _, Some(b'{')) => trace::fields(List::Headers, scanner, scratch)?,
                (_, Some(path), Some(b'{')) => self.object(scanner, scratch, &path)?,
                _ => self.field(meaning, scanner, scratch)?,
            }
        }
        Ok(())
    }

    fn field(&mut self, meaning: Meaning, scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<(), LineError> {
        let column = scanner.at;
        let Some(scalar) = scalar(scanner, scratch)? else {
            if let Meaning::MeasuredCost = meaning {
                // A gate writes `null` for a request that did not reach a backend. Its duration is not its cost.
                self.draft.is_measured = true;
            }
            return Ok(());
        };
        let line = scanner.line;
        match (meaning, scalar) {
            (Meaning::Time(rank), scalar) if rank > self.time_rank => self.time(rank, scalar, line, scratch, column),
            (Meaning::Client(rank), Scalar::Text(text)) if rank > self.client_rank => {
                self.draft.client = Some(text);
                self.client_rank = rank;
            }
            (Meaning::Method, Scalar::Text(text)) => self.draft.method = Some(text),
            (Meaning::Target(rank), Scalar::Text(text)) if rank > self.target_rank => {
                self.draft.target = Some(text);
                self.target_rank = rank;
            }
            (Meaning::Request, Scalar::Text(text)) if self.draft.target.is_none() => {
                request_line(text, line, scratch, &mut self.draft);
            }
            (Meaning::Status, scalar) => {
                self.draft.status = whole(scalar, line, scratch).and_then(|status| u16::try_from(status).ok());
            }
            (Meaning::BodyBytes, scalar) => self.draft.body_bytes = whole(scalar, line, scratch),
            (Meaning::MeasuredCost, scalar) => {
                self.draft.cost = duration(scalar, Unit::Millis, line, scratch);
                self.draft.is_measured = self.draft.cost.is_some();
            }
            (Meaning::Duration(rank, unit), scalar) if rank > self.duration_rank => {
                if let Some(duration) = duration(scalar, unit, line, scratch) {
                    self.draft.duration = Some(duration);
                    self.duration_rank = rank;
                }
            }
            (Meaning::Ticket, Scalar::Text(text)) => scratch.add_named(List::Attributes, "ticket", text, column)?,
            (Meaning::Header(name), Scalar::Text(text)) => scratch.add_named(List::Headers, name, text, column)?,
            _ => {}
        }
        Ok(())
    }

    /// Records a time, or the error if it is invalid: it is reported if no other field has a valid time.
    fn time(&mut self, rank: u8, scalar: Scalar, line: &[u8], scratch: &Scratch, column: usize) {
        let at = match scalar {
            Scalar::Number(count) => date::epoch(count),
            Scalar::Text(text) => date::parse(scratch.bytes(text, line)),
        };
        match at {
            Some(at) => {
                self.draft.at = Some(at);
                self.time_rank = rank;
            }
            None => self.time_error = Some(LineError::at(column, Expected::Time)),
        }
    }

    /// Handles a field that is not in the table: `http_user_agent` (nginx) and `request_User-Agent` (Traefik)
    /// are headers; others are skipped.
    fn other(&mut self, name: Text, scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<(), LineError> {
        let bytes = scratch.bytes(name, scanner.line);
        let prefix = match bytes {
            [b'h', b't', b't', b'p', b'_', _, ..] => 5,
            [b'r', b'e', b'q', b'u', b'e', b's', b't', b'_', b'A'..=b'Z', ..] => 8,
            _ => return scanner.skip_value(),
        };
        let header = name.slice(prefix, bytes.len());
        let column = scanner.at;
        if let Some(Scalar::Text(value)) = scalar(scanner, scratch)?
            && scratch.bytes(value, scanner.line) != b"-"
        {
            let header = scratch.dashed(header, scanner.line);
            scratch.add(List::Headers, header, value, column)?;
        }
        Ok(())
    }
}

/// The next number or nonempty text; other values are skipped.
fn scalar(scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<Option<Scalar>, LineError> {
    Ok(match scanner.peek() {
        Some(b'"') => Some(scanner.string(scratch)?).filter(|text| !text.is_empty()).map(Scalar::Text),
        Some(b'-' | b'0'..=b'9') => Some(Scalar::Number(scanner.number()?)),
        _ => {
            scanner.skip_value()?;
            None
        }
    })
}

/// A whole number, in quotes or not.
fn whole(scalar: Scalar, line: &[u8], scratch: &Scratch) -> Option<u64> {
    let number = match scalar {
        Scalar::Number(number) => number,
        Scalar::Text(text) => Decimal::parse(scratch.bytes(text, line))?,
    };
    number.scaled(0)
}

/// The duration in `scalar`. `unit` applies unless a text has its own. nginx writes a text with one number of seconds
/// per backend that it tried; their sum counts.
fn duration(scalar: Scalar, unit: Unit, line: &[u8], scratch: &Scratch) -> Option<Span> {
    let text = match scalar {
        Scalar::Number(number) => return unit.span(number),
        Scalar::Text(text) => scratch.bytes(text, line),
    };
    let Some((number, length)) = Decimal::prefix(text) else { return seconds(text) };
    let unit = match &text[length..] {
        b"" => unit,
        b"s" => Unit::Seconds,
        b"ms" => Unit::Millis,
        b"us" | b"\xc2\xb5s" => Unit::Micros,
        b"ns" => Unit::Nanos,
        _ => return seconds(text),
    };
    unit.span(number)
}

impl Unit {
    fn span(self, number: Decimal) -> Option<Span> {
        let shift = match self {
            Self::Seconds => 9,
            Self::Millis => 6,
            Self::Micros => 3,
            Self::Nanos => 0,
            Self::Ambiguous if number.is_whole() => 6,
            Self::Ambiguous => 9,
        };
        number.scaled(shift).map(Span::from_nanos)
    }
}

/// The names of nested objects and of a field, joined by dots.
#[derive(Clone, Copy, Default)]
struct Path {
    bytes: [u8; Self::BYTES_MAX],
    length: usize,
}

impl Path {
    /// At least the length of the longest path in the table.
    const BYTES_MAX: usize = 32;

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The path of a field in this object; `None` if it is longer than any path in the table.
    fn join(&self, name: &[u8]) -> Option<Self> {
        let mut path = *self;
        if self.length > 0 {
            *path.bytes.get_mut(path.length)? = b'.';
            path.length += 1;
        }
        let end = path.length + name.len();
        path.bytes.get_mut(path.length..end)?.copy_from_slice(name);
        path.length = end;
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Format, Line, Parser};
    use super::*;

    fn with_request(line: &str, check: impl FnOnce(Request<'_>)) {
        match Parser::new().parse(Format::Json, line.as_bytes()) {
            Ok(Line::Request(request)) => check(request),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Checks a line of a request by curl.
    fn check(line: &str, client: &str, (method, target): (&str, &str), cost_us: u64, status: u16, at_ms: u64) {
        with_request(line, |request| {
            assert_eq!(request.client, Client::Address(client.parse().unwrap()), "{line}");
            assert_eq!(request.method, Some(method.as_bytes()), "{line}");
            assert_eq!(request.target, Some(target.as_bytes()), "{line}");
            assert!(request.headers.first(b"user-agent").is_some_and(|agent| agent.starts_with(b"curl/")), "{line}");
            assert_eq!(request.cost.map(|cost| cost.as_nanos() / 1000), Some(cost_us), "{line}");
            assert_eq!(request.status, Some(status), "{line}");
            assert_eq!(request.at.as_nanos() / 1_000_000, at_ms, "{line}");
        });
    }

    #[test]
    fn the_logs_of_the_usual_servers_are_read() {
        // nginx, with its variable names.
        check(
            r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"203.0.113.7","remote_user":"","request":"GET /a?b HTTP/1.1","status":"200","body_bytes_sent":"612","request_time":"0.250","upstream_response_time":"0.123","http_referrer":"","http_user_agent":"curl/8"}"#,
            "203.0.113.7",
            ("GET", "/a?b"),
            123_000,
            200,
            971_211_336_000,
        );
        check(
            r#"{"msec":971211336.250,"time_iso8601":"2000-10-10T13:55:36-07:00","remote_addr":"2001:db8::7","request_method":"POST","request_uri":"/a","uri":"/index.php","status":404,"request_time":0.007,"upstream_response_time":"0.001, 0.002","http_user_agent":"curl/8"}"#,
            "2001:db8::7",
            ("POST", "/a"),
            3_000,
            404,
            971_211_336_250,
        );
        // Caddy.
        check(
            r#"{"level":"info","ts":971211336.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/x","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"]},"tls":{"resumed":false,"version":772}},"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#,
            "203.0.113.7",
            ("GET", "/x"),
            929,
            200,
            971_211_336_500,
        );
        // Traefik.
        check(
            r#"{"ClientAddr":"203.0.113.7:56789","ClientHost":"203.0.113.7","ClientPort":"56789","DownstreamContentSize":19,"DownstreamStatus":404,"Duration":35013000,"OriginDuration":31013000,"Overhead":4000,"RequestHost":"example.org","RequestMethod":"GET","RequestPath":"/y","RequestProtocol":"HTTP/1.1","StartUTC":"2000-10-10T20:55:36.235Z","level":"info","msg":"","request_User-Agent":"curl/8","time":"2000-10-10T20:55:37Z"}"#,
            "203.0.113.7",
            ("GET", "/y"),
            31_013,
            404,
            971_211_336_235,
        );
        // Envoy, as configured by Istio.
        check(
            r#"{"start_time":"2000-10-10T20:55:36.123Z","method":"GET","path":"/z","protocol":"HTTP/1.1","response_code":200,"duration":12,"upstream_service_time":"11","user_agent":"curl/8","authority":"example.org","downstream_remote_address":"203.0.113.7:1234"}"#,
            "203.0.113.7",
            ("GET", "/z"),
            11_000,
            200,
            971_211_336_123,
        );
        // ECS, Google's httpRequest, pino.
        check(
            r#"{"@timestamp":"2000-10-10T20:55:36Z","client":{"ip":"203.0.113.7"},"http":{"request":{"method":"GET"},"response":{"status_code":200}},"url":{"path":"/e"},"user_agent":{"original":"curl/8"},"event":{"duration":5000000}}"#,
            "203.0.113.7",
            ("GET", "/e"),
            5_000,
            200,
            971_211_336_000,
        );
        check(
            r#"{"httpRequest":{"requestMethod":"GET","requestUrl":"https://example.org/g","status":200,"userAgent":"curl/8","remoteIp":"203.0.113.7","latency":"0.5s"},"timestamp":"2000-10-10T20:55:36Z"}"#,
            "203.0.113.7",
            ("GET", "https://example.org/g"),
            500_000,
            200,
            971_211_336_000,
        );
        check(
            r#"{"level":30,"time":971211336123,"req":{"method":"GET","url":"/p","headers":{"user-agent":"curl/8"},"remoteAddress":"::ffff:203.0.113.7"},"res":{"statusCode":200},"responseTime":7,"msg":"request completed"}"#,
            "203.0.113.7",
            ("GET", "/p"),
            7_000,
            200,
            971_211_336_123,
        );
    }

    #[test]
    fn the_unit_comes_from_the_field_name_or_its_text() {
        for (field, expect_us) in [
            (r#""duration_ms": 12"#, Some(12_000)),
            (r#""duration_us": 12"#, Some(12)),
            (r#""latency_ns": 12000"#, Some(12)),
            (r#""request_time_s": 0.012"#, Some(12_000)),
            (r#""duration": 12"#, Some(12_000)),
            (r#""duration": 0.012"#, Some(12_000)),
            (r#""duration": "12ms""#, Some(12_000)),
            (r#""duration": "12µs""#, Some(12)),
            (r#""latency": "0.012s""#, Some(12_000)),
            (r#""cost_ms": 12.5"#, Some(12_500)),
            (r#""duration_ms": 12, "latency_ms": 13"#, Some(12_000)),
            (r#""request_time": "-""#, None),
            (r#""request_time": null"#, None),
            (r#""request_time": -1"#, None),
            (r#""request_time": {}"#, None),
            (r#""upstream_response_time": "-", "request_time": "0.012""#, Some(12_000)),
            (r#""upstream_response_time": "0.001 : 0.011""#, Some(12_000)),
        ] {
            with_request(&format!(r#"{{"ts": 1, "ip": "::1", {field}}}"#), |request| {
                assert_eq!(request.cost.map(|cost| cost.as_nanos() / 1000), expect_us, "{field}");
            });
        }
    }

    #[test]
    fn nginx_http_variables_are_headers() {
        with_request(r#"{"ts": 1, "ip": "::1", "http_x_api_key": "k", "http_cookie": "-", "http_": "x"}"#, |request| {
            let headers: Vec<_> = request.headers.iter().collect();
            assert_eq!(headers, [(&b"x-api-key"[..], &b"k"[..])]);
        });
    }

    #[test]
    fn an_invalid_line_gives_the_expected_item_and_its_position() {
        for (line, column, expected) in [
            ("{}", 3, Expected::Time),
            (r#"{"ip": "::1"}"#, 14, Expected::Time),
            (r#"{"ip": "::1", "time": "noon"}"#, 23, Expected::Time),
            (r#"{"ts": 1}"#, 10, Expected::Client),
            (r#"{"ts": 1, "ip": ""}"#, 20, Expected::Client),
            (r#"{"ts": 1, "ip": "::1"} x"#, 24, Expected::End),
            (r#"{"ts": 1, "http": {"request": [}}"#, 32, Expected::Value),
        ] {
            let error = Parser::new().parse(Format::Json, line.as_bytes()).unwrap_err();
            assert_eq!((error.column, error.expected), (column, expected), "{line}");
        }
    }

    #[test]
    fn objects_are_entered_no_deeper_than_the_table() {
        let deep = format!(r#"{{"ts": 1, "ip": "::1", "request": {}}}"#, r#"{"request":"#.repeat(10_000));
        assert!(Parser::new().parse(Format::Json, deep.as_bytes()).is_err());
        let odd = r#"{"ts": 1, "ip": "::1", "ts2": 5, "method": {"method": {"method": "X"}}, "a_path_that_is_longer_than_any_in_the_table": 1}"#;
        with_request(odd, |request| assert_eq!(request.method, None));
    }
}

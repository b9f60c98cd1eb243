//! The trace format: one JSON object per line, a request or a change of the load band.
//!
//! ```json
//! {"at_ms": 1000, "client": "203.0.113.7", "method": "GET", "path": "/", "headers": {"user-agent": "x"}, "cost_ms": 250}
//! {"at_ms": 2000, "band": "critical"}
//! ```
//!
//! Fields may be in any order. Only `at_ms` and `client` (or `band`) are required; unknown fields and `null`
//! are ignored. Milliseconds may have decimals. `"attributes": {"user": "u1"}` are the attributes that a
//! caller of a door supplies. `tollgate replay` reads traces.

use tollgate_core::band::Band;
use tollgate_core::time::{Moment, Span};

use super::request::{Draft, Line};
use super::scanner::Scanner;
use super::text::{List, Scratch, Text};
use super::{Expected, FIELDS_MAX, LineError};

/// The power of ten from milliseconds to nanoseconds.
const MILLIS: i32 = 6;

/// Parses one line of a trace.
pub(super) fn parse<'a>(line: &'a [u8], scratch: &'a mut Scratch) -> Result<Line<'a>, LineError> {
    let mut scanner = Scanner::new(line);
    let mut draft = Draft { is_measured: true, ..Draft::default() };
    let mut band = None;
    scanner.enter_object()?;
    while let Some(name) = scanner.next_field(scratch)? {
        match scratch.bytes(name, line) {
            b"at_ms" => draft.at = millis(&mut scanner, Expected::AtMs)?.map(Moment::from_nanos),
            b"client" => draft.client = string(&mut scanner, scratch)?,
            b"method" => draft.method = string(&mut scanner, scratch)?,
            b"path" => draft.target = string(&mut scanner, scratch)?,
            b"headers" => fields(List::Headers, &mut scanner, scratch)?,
            b"attributes" => fields(List::Attributes, &mut scanner, scratch)?,
            b"cost_ms" => draft.cost = millis(&mut scanner, Expected::CostMs)?.map(Span::from_nanos),
            b"band" => band = named_band(&mut scanner, scratch)?,
            _ => scanner.skip_value()?,
        }
    }
    scanner.end()?;
    match (band, draft.client) {
        (Some(band), None) => {
            let at = draft.at.ok_or(LineError::at(line.len(), Expected::AtMs))?;
            Ok(Line::Band { at, band })
        }
        (None, Some(_)) => draft.finish(line, scratch, Expected::AtMs).map(Line::Request),
        _ => Err(LineError::at(line.len(), Expected::ClientOrBand)),
    }
}

#[inline]
fn millis(scanner: &mut Scanner<'_>, expected: Expected) -> Result<Option<u64>, LineError> {
    if scanner.peek() == Some(b'n') && scanner.null() {
        return Ok(None);
    }
    let error = scanner.error(expected);
    let nanos = scanner.number().map_err(|_| error)?.scaled(MILLIS);
    nanos.map(Some).ok_or(error)
}

#[inline]
fn string(scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<Option<Text>, LineError> {
    if scanner.peek() == Some(b'n') && scanner.null() {
        return Ok(None);
    }
    scanner.string(scratch).map(Some)
}

fn named_band(scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<Option<Band>, LineError> {
    scanner.peek();
    let error = scanner.error(Expected::Band);
    let Some(name) = string(scanner, scratch).map_err(|_| error)? else {
        return Ok(None);
    };
    Band::ALL
        .into_iter()
        .find(|band| band.as_str().as_bytes() == scratch.bytes(name, scanner.line))
        .map(Some)
        .ok_or(error)
}

/// Reads an object and adds its fields to `list`. Values are strings, or arrays of strings for repeated headers, which
/// are joined.
pub(super) fn fields(list: List, scanner: &mut Scanner<'_>, scratch: &mut Scratch) -> Result<(), LineError> {
    if scanner.null() {
        return Ok(());
    }
    scanner.enter_object()?;
    while let Some(name) = scanner.next_field(scratch)? {
        if scanner.take(b'[') {
            let mut values = 0;
            while !scanner.take(b']') {
                if values > 0 && !scanner.take(b',') {
                    return Err(scanner.error(Expected::CommaOrEnd));
                }
                let value = scanner.string(scratch)?;
                match values {
                    0 => scratch.add(list, name, value, scanner.at)?,
                    1..FIELDS_MAX => scratch.join_last(list, value, scanner.line),
                    _ => return Err(scanner.error(Expected::FewerFields)),
                }
                values += 1;
            }
        } else if let Some(value) = string(scanner, scratch)? {
            scratch.add(list, name, value, scanner.at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Format, Parser, Request};
    use super::*;
    use proptest::prelude::*;

    fn with_request(line: &str, check: impl FnOnce(Request<'_>)) {
        match Parser::new().parse(Format::Trace, line.as_bytes()) {
            Ok(Line::Request(request)) => check(request),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn error(line: &str) -> (u32, Expected) {
        let error = Parser::new().parse(Format::Trace, line.as_bytes()).unwrap_err();
        (error.column, error.expected)
    }

    #[test]
    fn a_complete_request_is_parsed() {
        with_request(
            r#"{"at_ms": 1000, "client": "203.0.113.7", "method": "GET", "path": "/a?b", "headers": {"user-agent": "x", "Accept": "y"}, "cost_ms": 250}"#,
            |request| {
                assert_eq!(request.at, Moment::from_millis(1000));
                assert_eq!(request.client, Client::Address("203.0.113.7".parse().unwrap()));
                assert_eq!(request.method, Some(&b"GET"[..]));
                assert_eq!(request.target, Some(&b"/a?b"[..]));
                assert_eq!(request.headers.first(b"User-Agent"), Some(&b"x"[..]));
                assert_eq!(request.headers.first(b"accept"), Some(&b"y"[..]));
                assert_eq!(request.headers.first(b"cookie"), None);
                assert_eq!(request.cost, Some(Span::from_millis(250)));
            },
        );
    }

    #[test]
    fn only_the_time_and_the_client_are_needed_in_any_order() {
        with_request(r#"{"client":"device-7","at_ms":0.5}"#, |request| {
            assert_eq!(request.at, Moment::from_nanos(500_000));
            assert_eq!(request.client, Client::Name(b"device-7"));
            assert!(request.method.is_none() && request.target.is_none() && request.cost.is_none());
        });
    }

    #[test]
    fn unknown_fields_and_nulls_are_skipped() {
        with_request(
            " { \"x\" : [ { \"y\" : [1e5, true, \"\\u0041\"] } , null ] , \"at_ms\":1e3,\"client\":\"::1\",\"method\":null,\"headers\":null,\"cost_ms\":null} \r",
            |request| {
                assert_eq!(request.at, Moment::from_millis(1000));
                assert_eq!(request.headers.iter().count(), 0);
            },
        );
    }

    #[test]
    fn escaped_texts_and_repeated_headers_are_decoded() {
        with_request(
            r#"{"at_ms":1,"cl\u0069ent":"a\"b","path":"\/x\ud83d\ude00","headers":{"a\u002db":["1","2\n"],"c":[]}}"#,
            |request| {
                assert_eq!(request.client, Client::Name(b"a\"b"));
                assert_eq!(request.target, Some("/x😀".as_bytes()));
                let headers: Vec<_> = request.headers.iter().collect();
                assert_eq!(headers, [(&b"a-b"[..], &b"1, 2\n"[..])]);
            },
        );
    }

    #[test]
    fn invalid_utf8_is_kept() {
        let line = b"{\"at_ms\":1,\"client\":\"\xff\xfe\",\"path\":\"/\xc3\"}";
        let mut parser = Parser::new();
        let Ok(Line::Request(request)) = parser.parse(Format::Trace, line) else { panic!("not read") };
        assert_eq!(request.client, Client::Name(b"\xff\xfe"));
        assert_eq!(request.target, Some(&b"/\xc3"[..]));
    }

    #[test]
    fn a_band_is_read() {
        for (name, expect) in [("normal", Band::Normal), ("elevated", Band::Elevated), ("critical", Band::Critical)] {
            let line = format!(r#"{{"band": "{name}", "at_ms": 2000}}"#);
            match Parser::new().parse(Format::Trace, line.as_bytes()) {
                Ok(Line::Band { at, band }) => assert_eq!((at, band), (Moment::from_millis(2000), expect)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_invalid_line_gives_the_expected_item_and_its_position() {
        for (line, column, expected) in [
            ("", 1, Expected::Object),
            ("hello", 1, Expected::Object),
            ("[1]", 1, Expected::Object),
            ("{", 2, Expected::FieldName),
            (r#"{"at_ms" 1}"#, 10, Expected::Colon),
            (r#"{"at_ms": "1"}"#, 11, Expected::AtMs),
            (r#"{"at_ms": -1, "client": "x"}"#, 11, Expected::AtMs),
            (r#"{"at_ms": 1e300, "client": "x"}"#, 11, Expected::AtMs),
            (r#"{"at_ms": NaN, "client": "x"}"#, 11, Expected::AtMs),
            (r#"{"client": "x"}"#, 16, Expected::AtMs),
            (r#"{"at_ms": 1}"#, 13, Expected::ClientOrBand),
            (r#"{"at_ms": 1, "client": ""}"#, 27, Expected::Client),
            (r#"{"at_ms": 1, "client": 7}"#, 24, Expected::String),
            (r#"{"at_ms": 1, "client": "x", "cost_ms": -3}"#, 40, Expected::CostMs),
            (r#"{"at_ms": 1, "client": "x", "band": "normal"}"#, 46, Expected::ClientOrBand),
            (r#"{"at_ms": 1, "band": "warm"}"#, 22, Expected::Band),
            (r#"{"at_ms": 1, "client": "x"} {}"#, 29, Expected::End),
            (r#"{"at_ms": 1, "client": "x""#, 27, Expected::CommaOrEnd),
            (r#"{"at_ms": 1, "client": "x",}"#, 28, Expected::FieldName),
            (r#"{"at_ms": 1, "headers": {"a": 1}}"#, 31, Expected::String),
        ] {
            assert_eq!(error(line), (column, expected), "{line}");
        }
    }

    #[test]
    fn excessive_input_is_rejected() {
        let long = format!(r#"{{"at_ms": 1, "client": "{}"}}"#, "x".repeat(10_000_000));
        assert_eq!(error(&long).1, Expected::ShorterLine);
        let headers: Vec<_> = (0..200).map(|index| format!(r#""h{index}":"v""#)).collect();
        let crowded = format!(r#"{{"at_ms": 1, "client": "x", "headers": {{{}}}}}"#, headers.join(","));
        assert_eq!(error(&crowded).1, Expected::FewerFields);
        let deep = format!(r#"{{"at_ms": 1, "x": {}}}"#, "[".repeat(100_000));
        assert_eq!(error(&deep).1, Expected::ShallowerValue);
    }

    proptest! {
        #[test]
        fn every_request_comes_back(
            at_ms in 0u64..1 << 41,
            client in "\\PC{1,20}",
            path in proptest::option::of(any::<String>()),
            headers in prop::collection::vec((any::<String>(), any::<String>()), 0..5),
            cost_ms in proptest::option::of(0u64..1 << 40),
        ) {
            let object: serde_json::Map<_, _> = headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
            let line = serde_json::json!({"at_ms": at_ms, "client": client, "path": path, "headers": object, "cost_ms": cost_ms}).to_string();
            let mut parser = Parser::new();
            let Ok(Line::Request(request)) = parser.parse(Format::Trace, line.as_bytes()) else { panic!("{line}") };
            prop_assert_eq!(request.at, Moment::from_millis(at_ms));
            prop_assert_eq!(request.client, Client::parse(client.as_bytes()));
            prop_assert_eq!(request.target, path.as_deref().map(str::as_bytes));
            prop_assert_eq!(request.cost, cost_ms.map(Span::from_millis));
            let read: Vec<_> = request.headers.iter().collect();
            prop_assert_eq!(read.len(), object.len());
            for (name, value) in read {
                let name = str::from_utf8(name).unwrap();
                prop_assert_eq!(object[name].as_str().unwrap().as_bytes(), value);
            }
        }
    }
}

//! A short version of the fuzz targets: randomly damaged lines of every format must be parsed or rejected,
//! and must not affect the parsing of later lines.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tollgate_core::request::Request as _;
use tollgate_wire::log::{Format, Line, Parser};

const LINES: [&str; 6] = [
    r#"{"at_ms": 1000, "client": "203.0.113.7", "method": "GET", "path": "/\u00e9", "headers": {"user-agent": ["x", "\"y\""]}, "cost_ms": 2.5e2}"#,
    r#"{"at_ms": 2000, "band": "critical", "x": [{"y": null}, true, -0.5e-3]}"#,
    r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET /\x22 HTTP/1.1" 200 2326 "http://example.org/" "say \"hi\"" rt=0.250 urt="0.1, 0.2""#,
    r#"example.org:80 2001:db8::7 - a [b] [10/Oct/2000:13:55:36 -0700] "-" - - "-" "-" 12ms"#,
    r#"{"ts": 971211336.5, "request": {"client_ip": "::1", "headers": {"Host": ["a:80"]}, "uri": "http://a/b"}, "duration": 0.5}"#,
    r#"{"time_local": "10/Oct/2000:13:55:36 -0700", "remote_addr": "::1", "request": "GET / HTTP/1.1", "upstream_response_time": "0.1 : -", "http_cookie": "a=b"}"#,
];

/// A change to a line: its position as a fraction of the length, and the new content.
#[derive(Clone, Debug)]
enum Damage {
    Set(f64, u8),
    Insert(f64, Vec<u8>),
    Remove(f64, usize),
    Repeat(f64, usize),
    Cut(f64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let telling = prop::sample::select(b"\"\\{}[]:, \t\r\0u9-.eE=/\xff\xc3\x7f".to_vec());
    let byte = prop_oneof![telling, any::<u8>()];
    prop_oneof![
        (0.0..1.0, byte.clone()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (0.0..1.0, prop::collection::vec(byte, 1..5)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (0.0..1.0, 1usize..20).prop_map(|(at, count)| Damage::Remove(at, count)),
        (0.0..1.0, 1usize..40).prop_map(|(at, count)| Damage::Repeat(at, count)),
        (0.0..1.0).prop_map(Damage::Cut),
    ]
}

fn apply(line: &mut Vec<u8>, damage: &Damage) {
    let index = |at: f64| (at * line.len() as f64) as usize;
    match damage {
        Damage::Set(at, byte) => {
            let index = index(*at);
            if let Some(place) = line.get_mut(index) {
                *place = *byte;
            }
        }
        Damage::Insert(at, bytes) => {
            let index = index(*at);
            line.splice(index..index, bytes.iter().copied());
        }
        Damage::Remove(at, count) => {
            let start = index(*at);
            line.drain(start..(start + count).min(line.len()));
        }
        Damage::Repeat(at, count) => {
            let start = index(*at);
            let piece = line[start..(start + count).min(line.len())].to_vec();
            line.splice(start..start, piece);
        }
        Damage::Cut(at) => line.truncate(index(*at)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_line_is_read_or_refused_and_leaves_nothing_behind(
        original in prop::sample::select(LINES.to_vec()),
        damages in prop::collection::vec(damage(), 0..6),
    ) {
        let mut line = original.as_bytes().to_vec();
        damages.iter().for_each(|damage| apply(&mut line, damage));
        let mut parser = Parser::new();
        for format in Format::ALL {
            match parser.parse(format, &line) {
                Ok(Line::Request(request)) => {
                    prop_assert!(!request.client_text.is_empty());
                    prop_assert!(request.path().len() <= request.target().len());
                    prop_assert!(request.headers.iter().count() <= 128);
                    let _ = (request.host(), request.cookie("a"), format!("{request:?}"));
                }
                Ok(Line::Band { .. }) => prop_assert_eq!(format, Format::Trace),
                Err(error) => prop_assert!(error.column >= 1 && error.column as usize <= line.len() + 1, "{}", error),
            }
            let Ok(Line::Request(request)) = parser.parse(Format::Trace, LINES[0].as_bytes()) else { panic!("not read") };
            prop_assert_eq!(request.path(), "/é".as_bytes());
            // Several values of one header are joined.
            prop_assert_eq!(request.headers.iter().count(), 1);
        }
        let _ = Format::detect(&line);
    }
}

//! What a client is told about its limits, in the header fields that clients know.
//!
//! Two dialects: the IETF's `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), and Sharkey's
//! `X-RateLimit-Remaining`, `-Clear` and `-Reset`. The draft still changes, so nothing but this module knows how it is written.

use tollgate_core::time::Span;

use crate::decimal;

/// The largest integer of a structured field.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// One limit and where the client stands with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The rule's name.
    pub policy: &'a str,
    /// How much may be used per window: requests, or `unit`s.
    pub quota: u64,
    /// The window; none where there is no such thing, as for requests at work at once.
    pub window: Option<Span>,
    /// What is counted; none for requests.
    pub unit: Option<&'a str>,
    /// What is left.
    pub remaining: u64,
    /// How long to wait until one more fits; none when one fits now.
    pub reset: Span,
    /// How long until everything is available again.
    pub clear: Span,
}

/// Writes the value of `RateLimit-Policy`: `"api";q=100;w=60`.
pub fn write_policies<'a>(out: &mut Vec<u8>, standings: impl Iterator<Item = Standing<'a>>) {
    for (place, standing) in standings.enumerate() {
        write_name(out, place, standing.policy);
        write_parameter(out, "q", standing.quota);
        if let Some(unit) = standing.unit {
            out.extend_from_slice(b";qu=");
            write_string(out, unit);
        }
        // Whole seconds only; a shorter window is told as one second, of which the quota is certainly right.
        if let Some(window) = standing.window {
            write_parameter(out, "w", window.as_secs_ceil().max(1));
        }
    }
}

/// Writes the value of `RateLimit`: `"api";r=50;t=30`.
pub fn write_limits<'a>(out: &mut Vec<u8>, standings: impl Iterator<Item = Standing<'a>>) {
    for (place, standing) in standings.enumerate() {
        write_name(out, place, standing.policy);
        write_parameter(out, "r", standing.remaining);
        // The time within which no more than `r` can be used: until one more fits, or until all is there again.
        let effective = if standing.reset.is_zero() { standing.clear } else { standing.reset };
        write_parameter(out, "t", effective.as_secs_ceil());
    }
}

/// Seconds with three decimals, as Sharkey's `X-RateLimit-Clear` and `-Reset`.
pub fn write_seconds(out: &mut Vec<u8>, span: Span) {
    let millis = span.as_millis_ceil();
    decimal::put(out, millis / 1000);
    let digit = |place: u64| b'0' + (millis / place % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

fn write_name(out: &mut Vec<u8>, place: usize, name: &str) {
    if place > 0 {
        out.extend_from_slice(b", ");
    }
    write_string(out, name);
}

fn write_parameter(out: &mut Vec<u8>, name: &str, value: u64) {
    out.push(b';');
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    decimal::put(out, value.min(INTEGER_MAX));
}

/// A structured-field string holds printable ASCII only.
fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend([b'\\', character as u8]),
            ' '..='~' => out.push(character as u8),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: Standing<'static> = Standing {
        policy: "api",
        quota: 100,
        window: Some(Span::from_secs(60)),
        unit: None,
        remaining: 50,
        reset: Span::ZERO,
        clear: Span::from_millis(30_001),
    };

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn policies_and_limits_are_written_as_in_the_draft() {
        let cpu = Standing {
            policy: "c\"pu\u{e9}",
            quota: u64::MAX,
            window: None,
            unit: Some("cpu-ms"),
            reset: Span::from_millis(1),
            ..API
        };
        assert_eq!(
            text(|out| write_policies(out, [API, cpu].into_iter())),
            r#""api";q=100;w=60, "c\"pu?";q=999999999999999;qu="cpu-ms""#
        );
        assert_eq!(text(|out| write_limits(out, [API, cpu].into_iter())), r#""api";r=50;t=31, "c\"pu?";r=50;t=1"#);
    }

    #[test]
    fn a_window_shorter_than_a_second_is_told_as_one() {
        let standing = Standing { window: Some(Span::from_millis(10)), ..API };
        assert_eq!(text(|out| write_policies(out, [standing].into_iter())), r#""api";q=100;w=1"#);
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 7, 10, 99, 100, 12_345, u64::MAX] {
            assert_eq!(text(|out| decimal::put(out, number)), number.to_string());
        }
    }

    #[test]
    fn seconds_have_three_decimals_and_round_up() {
        for (nanos, written) in [(0, "0.000"), (1, "0.001"), (1_500_000_000, "1.500"), (60_000_000_000, "60.000")] {
            assert_eq!(text(|out| write_seconds(out, Span::from_nanos(nanos))), written);
        }
    }
}

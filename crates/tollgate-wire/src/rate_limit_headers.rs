//! Writes the values of response headers that describe a client's limit, for the gate, the doors and the gatekeeper.
//!
//! There are two dialects: the IETF's `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), and
//! `X-RateLimit-Remaining`, `-Clear` and `-Reset` of Sharkey, a social network server. The draft still changes, so its
//! syntax is confined to this module.

use tollgate_core::time::Span;

use crate::decimal;

/// The largest integer in a structured field.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// A limit and the client's current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus<'a> {
    /// The rule's name.
    pub policy: &'a str,
    /// The quota per window: requests, or `unit`s.
    pub quota: u64,
    /// The window; `None` for limits without one, such as concurrent requests.
    pub window: Option<Span>,
    /// The unit; `None` for requests.
    pub unit: Option<&'a str>,
    /// The remaining quota.
    pub remaining: u64,
    /// The time until one more request fits; zero if one fits now.
    pub reset: Span,
    /// The time until the full quota is available.
    pub clear: Span,
}

/// Writes the value of `RateLimit-Policy`: `"api";q=100;w=60`.
pub fn write_policy(out: &mut Vec<u8>, limit: LimitStatus<'_>) {
    write_string(out, limit.policy);
    write_parameter(out, "q", limit.quota);
    if let Some(unit) = limit.unit {
        out.extend_from_slice(b";qu=");
        write_string(out, unit);
    }
    // The draft has whole seconds only. A shorter window is written as one second, for which the quota is
    // still correct.
    if let Some(window) = limit.window {
        write_parameter(out, "w", window.as_secs_ceil().max(1));
    }
}

/// Writes the value of `RateLimit`: `"api";r=50;t=30`.
pub fn write_limit(out: &mut Vec<u8>, limit: LimitStatus<'_>) {
    write_string(out, limit.policy);
    write_parameter(out, "r", limit.remaining);
    // By the draft, `t` is the time after which more than `r` is available: if none fits now, until one fits, otherwise
    // until the full quota is available.
    let effective = if limit.reset.is_zero() { limit.clear } else { limit.reset };
    write_parameter(out, "t", effective.as_secs_ceil());
}

/// Seconds with three decimals, as in Sharkey's `X-RateLimit-Clear` and `-Reset`.
pub fn write_seconds(out: &mut Vec<u8>, span: Span) {
    let millis = span.as_millis_ceil();
    decimal::put(out, millis / 1000);
    let digit = |place: u64| b'0' + (millis / place % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

fn write_parameter(out: &mut Vec<u8>, name: &str, value: u64) {
    out.push(b';');
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    decimal::put(out, value.min(INTEGER_MAX));
}

/// Writes a structured-field string, which contains only printable ASCII.
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

    const API: LimitStatus<'static> = LimitStatus {
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
        let cpu = LimitStatus {
            policy: "c\"pu\u{e9}",
            quota: u64::MAX,
            window: None,
            unit: Some("cpu-ms"),
            reset: Span::from_millis(1),
            ..API
        };
        assert_eq!(text(|out| write_policy(out, API)), r#""api";q=100;w=60"#);
        assert_eq!(text(|out| write_policy(out, cpu)), r#""c\"pu?";q=999999999999999;qu="cpu-ms""#);
        assert_eq!(text(|out| write_limit(out, API)), r#""api";r=50;t=31"#);
        assert_eq!(text(|out| write_limit(out, cpu)), r#""c\"pu?";r=50;t=1"#);
    }

    #[test]
    fn a_window_shorter_than_a_second_is_written_as_one() {
        let limit = LimitStatus { window: Some(Span::from_millis(10)), ..API };
        assert_eq!(text(|out| write_policy(out, limit)), r#""api";q=100;w=1"#);
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

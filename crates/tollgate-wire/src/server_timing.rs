//! The CPU time of a request as reported by the backend: `Server-Timing: cpu;dur=12.3`, or milliseconds in a
//! configured field.
//!
//! The gate charges this time to the client and learns the prices of requests from it, so it is parsed strictly: digits
//! and at most one decimal point. Any other value (`NaN`, `-5`, `1e300`, `abc`) is invalid, and the gate treats the
//! request as if nothing had been reported.

use tollgate_core::time::Span;

use crate::decimal;

/// The reported value is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDuration;

/// Parses milliseconds such as `12` or `12.3`.
pub fn milliseconds(text: &[u8]) -> Result<Span, InvalidDuration> {
    // Six decimal places of milliseconds are nanoseconds. Twelve digits before the point are 30 years.
    decimal::parse_fixed(text, (12, 32), 6).map(Span::from_nanos).ok_or(InvalidDuration)
}

/// The duration of the `cpu` metric in a `Server-Timing` value; `None` if there is no such metric.
pub fn cpu(value: &[u8]) -> Result<Option<Span>, InvalidDuration> {
    let Some(metric) = metrics(value).find(|metric| is_cpu(metric)) else { return Ok(None) };
    let duration = split_outside_quotes(metric, b';').skip(1).find_map(|parameter| {
        let equals = memchr::memchr(b'=', parameter)?;
        let (name, value) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
        name.eq_ignore_ascii_case(b"dur").then_some(value)
    });
    let duration = duration.ok_or(InvalidDuration)?;
    let unquoted = duration.strip_prefix(b"\"").and_then(|inside| inside.strip_suffix(b"\"")).unwrap_or(duration);
    milliseconds(unquoted).map(Some)
}

/// Appends a `Server-Timing` value without its `cpu` metrics to `out`, for the client. Returns whether anything is
/// left.
pub fn write_without_cpu(value: &[u8], out: &mut Vec<u8>) -> bool {
    let mut any = false;
    for metric in metrics(value).filter(|metric| !is_cpu(metric)) {
        if any {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(metric);
        any = true;
    }
    any
}

/// Whether a request that took the time `wall` can have used the CPU time `cpu` on a backend with `cores_milli`
/// thousandths of a core, with a tolerance of 10 % for clock errors.
pub fn is_plausible(cpu: Span, wall: Span, cores_milli: u32) -> bool {
    let most = u128::from(wall.as_nanos()) * u128::from(cores_milli) * 11 / 10_000;
    u128::from(cpu.as_nanos()) <= most
}

fn is_cpu(metric: &[u8]) -> bool {
    let name = metric.split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"cpu")
}

/// The metrics of a list.
fn metrics(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_outside_quotes(value, b',').filter(|metric| !metric.is_empty())
}

/// The parts between separators, without surrounding white space. Separators within quotes do not split.
fn split_outside_quotes(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    let mut escaped = false;
    value
        .split(move |byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ => {}
            }
            *byte == separator && !quoted
        })
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_cpu_metric_is_found_among_others() {
        for (value, nanos) in [
            ("cpu;dur=12", 12_000_000),
            ("cpu;dur=12.3", 12_300_000),
            ("db;dur=53, CPU; desc=\"a,b;dur=9\" ;Dur = 0.000001", 1),
            ("cpu;dur=\"7.5\"", 7_500_000),
            ("cpu;dur=0", 0),
        ] {
            assert_eq!(cpu(value.as_bytes()), Ok(Some(Span::from_nanos(nanos))), "{value}");
        }
        for value in ["", "db;dur=53", "cpux;dur=5", "x;desc=\"cpu;dur=5\""] {
            assert_eq!(cpu(value.as_bytes()), Ok(None), "{value}");
        }
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        for text in
            ["NaN", "-5", "1e300", "abc", "", ".", "1.", ".5", "inf", "+5", "0x5", "5ms", "1234567890123", "1 2", "٣"]
        {
            assert_eq!(cpu(format!("cpu;dur={text}").as_bytes()), Err(InvalidDuration), "{text}");
        }
        assert_eq!(cpu(b"cpu"), Err(InvalidDuration));
    }

    #[test]
    fn other_metrics_stay_when_the_cpu_metric_is_removed() {
        let without = |value: &str| {
            let mut out = Vec::new();
            let any = write_without_cpu(value.as_bytes(), &mut out);
            (any, String::from_utf8(out).unwrap())
        };
        assert_eq!(without("cpu;dur=5"), (false, String::new()));
        assert_eq!(without("db;dur=1, cpu;dur=5, x;desc=\"a, b\""), (true, "db;dur=1, x;desc=\"a, b\"".into()));
    }

    #[test]
    fn more_cpu_time_than_the_cores_have_is_not_plausible() {
        let second = Span::from_secs(1);
        assert!(is_plausible(second, second, 1000));
        assert!(is_plausible(Span::from_millis(1100), second, 1000));
        assert!(!is_plausible(Span::from_millis(1101), second, 1000));
        assert!(is_plausible(Span::from_millis(4400), second, 4000));
        assert!(!is_plausible(Span::MAX, second, 4000));
    }

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_nothing(value in "[ -~]{0,60}") {
            let _ = cpu(value.as_bytes());
            write_without_cpu(value.as_bytes(), &mut Vec::new());
        }
    }
}

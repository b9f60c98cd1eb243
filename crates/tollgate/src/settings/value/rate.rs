//! Rates of rules: `5/min`, `2000/s`, `1 per 10s`. They are stored exactly, as a whole number of requests per period.

use tollgate_core::time::Span;

use super::super::error::shown;
use super::decimal::{ExactDecimal, Inexact};
use super::duration::{parse_unit, split_number};
use super::text_value;

/// A number of requests per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerTime {
    pub(in super::super) count: u64,
    pub(in super::super) period: Span,
}

/// Parses a rate. The error is a message for the operator.
pub(in super::super) fn parse_rate(text: &str) -> Result<PerTime, String> {
    let (number, rest) = split_number(text);
    if number.is_empty() {
        return Err(format!(
            "{} is not a rate: write a count and a time such as \"5/min\" or \"1 per 10s\"",
            shown(text)
        ));
    }
    let count = ExactDecimal::parse(number)?;
    let Some(period) = rest.strip_prefix('/').or_else(|| rest.strip_prefix("per")) else {
        return Err(format!("{} is not a rate: add the time, as in \"{number}/s\" or \"{number}/min\"", shown(text)));
    };
    if count.is_zero() {
        return Err("a rate of 0 admits no request: write a rate above 0".to_string());
    }
    let (number, unit) = split_number(period);
    let units = ExactDecimal::parse(if number.is_empty() { "1" } else { number })?;
    let nanos = units.times(parse_unit(unit)?);
    if nanos == Ok(0) {
        return Err(format!("{} has a period of 0: write a period above 0", shown(text)));
    }
    with_whole_count(count, nanos).map_err(|inexact| match inexact {
        Inexact::TooLarge => format!("{} is too large to be exact: write a smaller count or period", shown(text)),
        Inexact::TooFine => format!("{} is too small to be exact: write numbers with fewer decimals", shown(text)),
    })
}

/// The rate of `count` requests per `nanos` with a whole count: `0.5/s` becomes 1 per 2 s.
fn with_whole_count(count: ExactDecimal, nanos: Result<u64, Inexact>) -> Result<PerTime, Inexact> {
    let (count, per) = count.fraction()?;
    let nanos = nanos?.checked_mul(per).ok_or(Inexact::TooFine)?;
    Ok(PerTime { count, period: Span::from_nanos(nanos) })
}

text_value!(PerTime, "a rate", "5/min", parse_rate, read_text_or_number);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_exactly() {
        let check = |text: &str, count: u64, period: Span| {
            assert_eq!(parse_rate(text), Ok(PerTime { count, period }), "{text}");
        };
        check("5/min", 5, Span::from_secs(60));
        check("2000/s", 2000, Span::from_secs(1));
        check("1 per 10s", 1, Span::from_secs(10));
        check("5/10 min", 5, Span::from_secs(600));
        check(" 3 / hour ", 3, Span::from_secs(3600));
        check("1 per day", 1, Span::from_secs(86_400));
        check("0.5/s", 1, Span::from_secs(2));
        check("2.5/s", 5, Span::from_secs(2));
        check("1e9/s", 1_000_000_000, Span::from_secs(1));
        check("0.001/week", 1, Span::from_secs(604_800_000));
        check("4/0.5s", 4, Span::from_millis(500));
    }

    #[test]
    fn the_message_for_an_invalid_rate_contains_the_correction() {
        let check = |text: &str, words: &str| {
            let message = parse_rate(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("0/s", "above 0");
        check("0.0/s", "above 0");
        check("-1/s", "negative");
        check("nan/s", "finite");
        check("inf/s", "finite");
        check("1e308/s", "too large to be exact");
        check("1e-300/s", "too small to be exact");
        check("5", "\"5/s\"");
        check("5 s", "add the time");
        check("5/0s", "a period of 0");
        check("5/", "unknown unit");
        check("5/mn", "did you mean");
        check("often", "a count and a time");
        check("", "a count and a time");
        check("9223372036854775808/1e12 weeks", "too large to be exact");
    }
}

//! Durations: `250ms`, `10s`, `5min`, `2 days`.

use std::time::Duration;

use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{ErrorCollector, shown};
use super::super::shape::Shape;
use super::super::suggestion::did_you_mean;
use super::super::table::Value;
use super::decimal::{ExactDecimal, Inexact};
use super::text_value;

/// The names of a unit, and its length in nanoseconds.
type Unit = (&'static [&'static str], u64);

const UNITS: [Unit; 8] = [
    (&["ns"], 1),
    (&["us", "µs", "μs"], 1_000),
    (&["ms", "msec"], 1_000_000),
    (&["s", "sec", "second", "seconds"], 1_000_000_000),
    (&["min", "m", "minute", "minutes"], 60_000_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["w", "week", "weeks"], 604_800_000_000_000),
];

/// The names of all units; the first of each is the usual one.
pub(in super::super) fn unit_names() -> impl Iterator<Item = &'static [&'static str]> {
    UNITS.iter().map(|(names, _)| *names)
}

/// The length of a unit in nanoseconds. The error is a message for the operator.
pub(super) fn parse_unit(text: &str) -> Result<u64, String> {
    let unit = UNITS.iter().find(|(names, _)| names.contains(&text));
    unit.map(|(_, nanos)| *nanos).ok_or_else(|| {
        let hint = did_you_mean(text, UNITS.iter().flat_map(|(names, _)| names.iter().copied()));
        let hint = if hint.is_empty() { ": write ms, s, min, h, day or week".to_string() } else { hint };
        format!("unknown unit of time {}{hint}", shown(text))
    })
}

/// Splits `10 s` into its number and its unit, either of which may be empty.
pub(super) fn split_number(text: &str) -> (&str, &str) {
    let text = text.trim();
    // A sign or a word such as `nan` is part of the number, so that its error message is about the number.
    let word = ["nan", "inf"].iter().find(|word| text.trim_start_matches(['+', '-']).starts_with(**word));
    let end = match word {
        Some(_) => text.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(text.len()),
        None => number_length(text),
    };
    (&text[..end], text[end..].trim())
}

/// The length of the number at the start of `text`: sign, digits, point and exponent.
fn number_length(text: &str) -> usize {
    let digits = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let exponent = &text[digits..];
    match exponent.strip_prefix(['e', 'E']) {
        Some(rest) if rest.starts_with(|c: char| matches!(c, '0'..='9' | '+' | '-')) => {
            let length = rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-')).unwrap_or(rest.len());
            digits + 1 + length
        }
        _ => digits,
    }
}

/// Parses a duration. The error is a message for the operator.
pub(in super::super) fn parse_duration(text: &str) -> Result<Span, String> {
    let (number, unit) = split_number(text);
    if number.is_empty() {
        return Err(format!(
            "{} is not a duration: write a number and a unit such as \"250ms\" or \"10s\"",
            shown(text)
        ));
    }
    let number_read = ExactDecimal::parse(number)?;
    if unit.is_empty() {
        return Err(format!(
            "a duration needs a unit: write \"{number}s\" for seconds or \"{number}ms\" for milliseconds"
        ));
    }
    match number_read.times(parse_unit(unit)?) {
        Ok(nanos) => Ok(Span::from_nanos(nanos)),
        Err(Inexact::TooLarge) => Err(format!("{} is longer than 584 years", shown(text))),
        Err(Inexact::TooFine) => Err(format!("{} is not a whole number of nanoseconds", shown(text))),
    }
}

// A duration, which may be 0.
text_value!(Span, "a duration", "10s", parse_duration, read_text_or_number);

/// A duration above 0.
pub(crate) enum PositiveSpan {}

impl Value for PositiveSpan {
    type Parsed = Span;

    fn shape() -> Shape {
        Span::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Span> {
        match Span::read(value, errors)? {
            Span::ZERO => errors.refuse(&value.span(), "must not be 0: write a duration such as \"1s\""),
            span => Some(span),
        }
    }
}

/// The same as a [`PositiveSpan`], for the standard library and tokio.
impl Value for Duration {
    type Parsed = Self;

    fn shape() -> Shape {
        Span::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        PositiveSpan::read(value, errors).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_exactly() {
        let check = |text: &str, nanos: u64| assert_eq!(parse_duration(text), Ok(Span::from_nanos(nanos)), "{text}");
        check("250ms", 250_000_000);
        check("10s", 10_000_000_000);
        check("5min", 300_000_000_000);
        check("5 m", 300_000_000_000);
        check("1h", 3_600_000_000_000);
        check("2 days", 172_800_000_000_000);
        check(" 1 week ", 604_800_000_000_000);
        check("1.5s", 1_500_000_000);
        check("0.1us", 100);
        check("3µs", 3_000);
        check("1e3ms", 1_000_000_000);
        check("0s", 0);
        check("18446744073709551615ns", u64::MAX);
    }

    #[test]
    fn the_message_for_an_invalid_duration_contains_the_correction() {
        let check = |text: &str, words: &str| {
            let message = parse_duration(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("30", "write \"30s\"");
        check("10 sekonds", "did you mean `seconds`?");
        check("10 fortnights", "write ms, s, min");
        check("", "a number and a unit");
        check("soon", "a number and a unit");
        check("-5s", "negative");
        check("nan s", "finite");
        check("infs", "finite");
        check("1e308s", "584 years");
        check("1e-300s", "nanoseconds");
        check("0.5ns", "nanoseconds");
        check("99999999999 weeks", "584 years");
        check("1h 30min", "unknown unit");
        check("5s\u{1b}[31m", "\\u{1b}");
    }
}

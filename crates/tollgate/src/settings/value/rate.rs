//! Rates as people write them: `5/min`, `2000/s`, `1 per 10s`.

use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::super::fault::{Collector, shown};
use super::super::shape::Shape;
use super::super::table::Value;
use super::decimal::{Decimal, Inexact};
use super::duration::{parse_unit, split_number};
use super::read_text_or_number;

/// So many per so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PerTime {
    pub(in super::super) count: u64,
    pub(in super::super) period: Span,
}

/// Reads a rate. The error is the message for a person.
pub(in super::super) fn parse_rate(text: &str) -> Result<PerTime, String> {
    let (number, rest) = split_number(text);
    if number.is_empty() {
        return Err(format!(
            "{} is not a rate: write a count and a time such as \"5/min\" or \"1 per 10s\"",
            shown(text)
        ));
    }
    let count = Decimal::parse(number)?;
    let Some(period) = rest.strip_prefix('/').or_else(|| rest.strip_prefix("per")) else {
        return Err(format!(
            "{} is not a rate: say per what time, as in \"{number}/s\" or \"{number}/min\"",
            shown(text)
        ));
    };
    if count.is_zero() {
        return Err("a rate of 0 lets nothing through: write a rate above 0".to_string());
    }
    let (times, unit) = split_number(period);
    let times = Decimal::parse(if times.is_empty() { "1" } else { times })?;
    let nanos = times.times(parse_unit(unit)?);
    if nanos == Ok(0) {
        return Err(format!("{} has a period of 0: write a period above 0", shown(text)));
    }
    exact(count, nanos).map_err(|inexact| match inexact {
        Inexact::TooLarge => format!("{} is more than can be counted: write less per a shorter time", shown(text)),
        Inexact::TooFine => format!("{} is finer than can be counted: write more per a longer time", shown(text)),
    })
}

/// `0.5/s` is kept as 1 per 2 s: nothing is lost.
fn exact(count: Decimal, nanos: Result<u64, Inexact>) -> Result<PerTime, Inexact> {
    let (count, per) = count.fraction()?;
    let nanos = nanos?.checked_mul(per).ok_or(Inexact::TooFine)?;
    Ok(PerTime { count, period: Span::from_nanos(nanos) })
}

impl Value for PerTime {
    fn shape() -> Shape {
        Shape::Text { what: "a rate", example: "5/min" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        read_text_or_number(value, faults, &Self::shape(), parse_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_exactly() {
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
    fn what_is_no_rate_says_what_to_write() {
        let check = |text: &str, words: &str| {
            let message = parse_rate(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("0/s", "above 0");
        check("0.0/s", "above 0");
        check("-1/s", "negative");
        check("nan/s", "finite");
        check("inf/s", "finite");
        check("1e308/s", "more than can be counted");
        check("1e-300/s", "finer than can be counted");
        check("5", "\"5/s\"");
        check("5 s", "say per what time");
        check("5/0s", "a period of 0");
        check("5/", "unknown unit");
        check("5/mn", "did you mean");
        check("often", "a count and a time");
        check("", "a count and a time");
        check("9223372036854775808/1e12 weeks", "more than can be counted");
    }
}

//! Sizes in bytes: `64MiB`.

use std::marker::PhantomData;

use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{ErrorCollector, shown};
use super::super::shape::Shape;
use super::super::suggestion::did_you_mean;
use super::super::table::Value;
use super::decimal::{ExactDecimal, Inexact};
use super::duration::split_number;
use super::read_text_or_number;

/// A size in bytes, parsed to the integer type `T`.
pub(crate) struct Size<T = u64>(PhantomData<T>);

/// The name of each unit, and its size in bytes.
const UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// The names of all units.
pub(in super::super) fn unit_names() -> impl Iterator<Item = &'static str> {
    UNITS.iter().map(|(name, _)| *name)
}

/// Parses a size. The error is a message for the operator.
fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text);
    if number.is_empty() {
        return Err(format!("{} is not a size: write a number and a unit such as \"64MiB\"", shown(text)));
    }
    let number_read = ExactDecimal::parse(number)?;
    if unit.is_empty() {
        return Err(format!("a size needs a unit: write \"{number}MiB\", \"{number}KiB\" or \"{number}B\""));
    }
    let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let hint = did_you_mean(unit, UNITS.iter().map(|(name, _)| *name));
        let hint = if hint.is_empty() { ": write B, KiB, MiB or GiB".to_string() } else { hint };
        return Err(format!("unknown unit of memory {}{hint}", shown(unit)));
    };
    number_read.times(*bytes).map_err(|inexact| match inexact {
        Inexact::TooLarge => format!("{} is more memory than can be addressed", shown(text)),
        Inexact::TooFine => format!("{} is not a whole number of bytes", shown(text)),
    })
}

impl<T: TryFrom<u64>> Value for Size<T> {
    type Parsed = T;

    fn shape() -> Shape {
        Shape::Text { what: "a size", example: "64MiB" }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<T> {
        read_text_or_number(value, errors, &Self::shape(), parse_size)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_exactly() {
        let check = |text: &str, bytes: u64| assert_eq!(parse_size(text), Ok(bytes), "{text}");
        check("64MiB", 64 << 20);
        check("1.5 GiB", 3 << 29);
        check("10kB", 10_000);
        check("512B", 512);
    }

    #[test]
    fn the_message_for_an_invalid_size_contains_the_correction() {
        let check = |text: &str, words: &str| {
            let message = parse_size(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("64", "\"64MiB\"");
        check("64Mib", "did you mean `MiB`?");
        check("64 pages", "write B, KiB");
        check("0.3B", "whole number of bytes");
        check("1e30TiB", "more memory");
        check("-1MiB", "negative");
        check("lots", "a number and a unit");
    }
}

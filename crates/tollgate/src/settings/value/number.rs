//! Numbers and booleans of the settings file: whole numbers ([`WholeNumber`]), and decimal numbers that are stored as a
//! whole number of thousandths or millionths ([`Parts`]). 0 is never accepted.

use std::marker::PhantomData;

use tollgate_core::virtual_clock::Cores;
use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{ErrorCollector, shown};
use super::super::shape::Shape;
use super::super::table::{Value, refuse};
use super::decimal::{ExactDecimal, Inexact};

/// A whole number from 1 to `max`.
fn read_count(value: &Spanned<DeValue<'_>>, max: u64, errors: &mut ErrorCollector) -> Option<u64> {
    let DeValue::Integer(number) = value.get_ref() else {
        return refuse(value, &Shape::Integer { min: 1, max }, errors);
    };
    let message = match i128::from_str_radix(number.as_str(), number.radix()) {
        Ok(0) => "must not be 0: write a whole number, at least 1".to_string(),
        Ok(negative) if negative < 0 => format!("{negative} is negative: write a whole number, at least 1"),
        Ok(count) if count <= i128::from(max) => return u64::try_from(count).ok(),
        _ => format!("{} is too large: the most is {max}", shown(&number.to_string())),
    };
    errors.refuse(&value.span(), message)
}

/// A whole number above 0, parsed to the integer type `T`.
pub(crate) struct WholeNumber<T>(PhantomData<T>);

/// Implements [`Value`] for whole numbers of a type, up to a maximum.
macro_rules! count {
    ($($type:ty, $max:expr;)*) => { $(
        impl Value for WholeNumber<$type> {
            type Parsed = $type;

            fn shape() -> Shape {
                Shape::Integer { min: 1, max: u64::from($max) }
            }

            fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<$type> {
                read_count(value, u64::from($max), errors)?.try_into().ok()
            }
        }
    )* };
}

// The maximum of `usize` is that of 32 bits, so that a file is valid on every machine or on none.
count! { u8, u8::MAX; u32, u32::MAX; u64, u64::MAX; usize, u32::MAX; }

impl Value for bool {
    type Parsed = Self;

    fn shape() -> Shape {
        Shape::Flag
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => refuse(value, &Self::shape(), errors),
        }
    }
}

/// A number above 0, stored as a multiple of 1 / `SCALE`.
pub(crate) enum Parts<const SCALE: u64> {}

/// A number above 0 with at most three decimals.
pub(crate) type Thousandths = Parts<1_000>;
/// A number above 0 with at most six decimals.
pub(crate) type Millionths = Parts<1_000_000>;

impl<const SCALE: u64> Parts<SCALE> {
    fn parse(text: &str) -> Result<u32, String> {
        let number = ExactDecimal::parse(text)?;
        if number.is_zero() {
            return Err("must not be 0: write a number above 0".to_string());
        }
        let parts = number.times(SCALE).and_then(|parts| u32::try_from(parts).map_err(|_| Inexact::TooLarge));
        parts.map_err(|inexact| match inexact {
            Inexact::TooLarge => format!("{} is too large: the most is {}", shown(text), u64::from(u32::MAX) / SCALE),
            Inexact::TooFine => format!("{} has more than {} decimals", shown(text), SCALE.ilog10()),
        })
    }
}

impl<const SCALE: u64> Value for Parts<SCALE> {
    type Parsed = u32;

    fn shape() -> Shape {
        Shape::Number
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<u32> {
        let text = match value.get_ref() {
            DeValue::Float(number) => number.as_str().to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_string(),
            _ => return refuse(value, &Self::shape(), errors),
        };
        Self::parse(&text).map_or_else(|message| errors.refuse(&value.span(), message), Some)
    }
}

/// A number of CPU cores, with at most three decimals.
impl Value for Cores {
    type Parsed = Self;

    fn shape() -> Shape {
        Thousandths::shape()
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        Thousandths::read(value, errors).map(Self::from_milli)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_exact_or_refused() {
        assert_eq!(Millionths::parse("0.1"), Ok(100_000));
        assert_eq!(Thousandths::parse("2"), Ok(2_000));
        assert_eq!(Thousandths::parse("+1.500"), Ok(1_500));
        let check = |text: &str, words: &str| {
            let message = Thousandths::parse(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        };
        check("0", "above 0");
        check("0.0", "above 0");
        check("-1", "negative");
        check("nan", "finite");
        check("inf", "finite");
        check("1e308", "too large");
        check("1e-300", "more than 3 decimals");
        check("0.0001", "more than 3 decimals");
    }
}

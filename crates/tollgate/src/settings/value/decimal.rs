//! Decimal numbers without the rounding of floats. The parsers of durations, rates, sizes and fractions use them.

use super::super::error::shown;

/// `mantissa` times ten to the power of `exponent`: never negative, always finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExactDecimal {
    mantissa: u128,
    exponent: i32,
    /// Whether digits other than 0 did not fit into `mantissa`. The number is then not exact.
    is_truncated: bool,
}

/// The reason why a number times a unit is not a 64-bit integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inexact {
    /// It is larger than 64 bits.
    TooLarge,
    /// It has a fractional part.
    TooFine,
}

impl ExactDecimal {
    /// Parses `12`, `0.5` or `1e3`. The error is a message for the operator.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let word = unsigned.trim_start_matches('-').to_ascii_lowercase();
        if word == "nan" || word.starts_with("inf") {
            return Err(format!("{} is not a finite number: write a finite one", shown(text)));
        }
        let (negative, unsigned) = unsigned.strip_prefix('-').map_or((false, unsigned), |rest| (true, rest));
        let decimal = Self::parse_unsigned(unsigned).ok_or_else(|| format!("{} is not a number", shown(text)))?;
        if negative && decimal.mantissa > 0 {
            return Err(format!("{} is negative: write a number above 0", shown(text)));
        }
        Ok(decimal)
    }

    fn parse_unsigned(text: &str) -> Option<Self> {
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, parse_exponent(exponent)?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        if whole.is_empty() || fraction.is_empty() {
            return None;
        }
        let mut decimal = Self { mantissa: 0, exponent, is_truncated: false };
        for (index, digit) in whole.bytes().chain(fraction.trim_end_matches('0').bytes()).enumerate() {
            let digit = char::from(digit).to_digit(10)?;
            let is_fraction = index >= whole.len();
            match decimal.mantissa.checked_mul(10).and_then(|m| m.checked_add(u128::from(digit))) {
                Some(mantissa) => {
                    decimal.mantissa = mantissa;
                    decimal.exponent = decimal.exponent.saturating_sub(i32::from(is_fraction));
                }
                None => {
                    decimal.exponent = decimal.exponent.saturating_add(i32::from(!is_fraction));
                    decimal.is_truncated |= digit > 0;
                }
            }
        }
        Some(decimal)
    }

    /// Whether the number is 0.
    pub(super) const fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// The exact product with `unit`, such as the nanoseconds of a second.
    pub(super) fn times(self, unit: u64) -> Result<u64, Inexact> {
        if self.is_zero() {
            return Ok(0);
        }
        let power = 10_u128.checked_pow(self.exponent.unsigned_abs());
        let product = self.mantissa.checked_mul(u128::from(unit)).ok_or(Inexact::TooLarge)?;
        let exact = if self.exponent >= 0 {
            power.and_then(|power| product.checked_mul(power)).ok_or(Inexact::TooLarge)?
        } else {
            let power = power.ok_or(Inexact::TooFine)?;
            if self.is_truncated || product % power != 0 {
                return Err(if product / power > u128::from(u64::MAX) { Inexact::TooLarge } else { Inexact::TooFine });
            }
            product / power
        };
        u64::try_from(exact).map_err(|_| Inexact::TooLarge)
    }

    /// The number as a fraction in lowest terms: numerator and denominator.
    pub(super) fn fraction(self) -> Result<(u64, u64), Inexact> {
        if self.exponent >= 0 {
            return self.times(1).map(|count| (count, 1));
        }
        let power = 10_u128.checked_pow(self.exponent.unsigned_abs()).filter(|_| !self.is_truncated);
        let per = power.ok_or(Inexact::TooFine)?;
        let divisor = gcd(self.mantissa, per);
        let count = u64::try_from(self.mantissa / divisor).map_err(|_| Inexact::TooLarge)?;
        Ok((count, u64::try_from(per / divisor).map_err(|_| Inexact::TooFine)?))
    }
}

/// Parses an exponent. One that does not fit into 32 bits becomes `i32::MAX / 2` (or its negative), which no unit fits.
fn parse_exponent(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().unwrap_or(i32::MAX / 2);
    Some(if text.starts_with('-') { -size } else { size })
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str, unit: u64) -> Result<u64, Inexact> {
        ExactDecimal::parse(text).unwrap().times(unit)
    }

    #[test]
    fn decimals_become_integers_exactly_or_not_at_all() {
        assert_eq!(times("0.1", 1_000_000), Ok(100_000));
        assert_eq!(times("1.50", 1000), Ok(1500));
        assert_eq!(times("1e3", 1), Ok(1000));
        assert_eq!(times("2.5e-1", 100), Ok(25));
        assert_eq!(times("0.0000001", 1_000_000), Err(Inexact::TooFine));
        assert_eq!(times("18446744073709551615", 1), Ok(u64::MAX));
        assert_eq!(times("18446744073709551616", 1), Err(Inexact::TooLarge));
        assert_eq!(times("1e308", 1), Err(Inexact::TooLarge));
        assert_eq!(times("1e-300", u64::MAX), Err(Inexact::TooFine));
        assert_eq!(times("1e99999999999999999999", 1), Err(Inexact::TooLarge));
        assert_eq!(times("0e99999999999999999999", 1), Ok(0));
        assert_eq!(times(&"9".repeat(10_000), 1), Err(Inexact::TooLarge));
        assert_eq!(times(&format!("0.{}1", "0".repeat(10_000)), 1), Err(Inexact::TooFine));
        assert_eq!(times(&format!("{}.5", "9".repeat(60)), 1), Err(Inexact::TooLarge));
        assert_eq!(times("-0", 1), Ok(0));
        assert_eq!(times("10000000000000000000.0000000000000000000000001", 1), Err(Inexact::TooFine));
        assert_eq!(times(&format!("1{}1e-26", "0".repeat(44)), 1), Err(Inexact::TooFine));
        assert_eq!(times(&format!("1{}e-26", "0".repeat(45)), 1), Ok(10_000_000_000_000_000_000));
    }

    #[test]
    fn a_fraction_is_in_lowest_terms() {
        let fraction = |text: &str| ExactDecimal::parse(text).unwrap().fraction();
        assert_eq!(fraction("0.5"), Ok((1, 2)));
        assert_eq!(fraction("2.50"), Ok((5, 2)));
        assert_eq!(fraction("60"), Ok((60, 1)));
        assert_eq!(fraction("1e-300"), Err(Inexact::TooFine));
        assert_eq!(fraction("1e308"), Err(Inexact::TooLarge));
        assert_eq!(fraction("10000000000000000000.0000000000000000000000001"), Err(Inexact::TooFine));
    }

    #[test]
    fn an_invalid_number_is_refused_with_a_reason() {
        for text in ["", ".", "1.", ".5", "1e", "e5", "0x10", "1_000", "1 000", "--1", "1.2.3", "1e1.5", "½", "１"] {
            assert!(ExactDecimal::parse(text).unwrap_err().contains("not a number"), "{text}");
        }
        for text in ["nan", "NaN", "-nan", "inf", "-inf", "+inf", "Infinity"] {
            assert!(ExactDecimal::parse(text).unwrap_err().contains("finite"), "{text}");
        }
        assert!(ExactDecimal::parse("-5").unwrap_err().contains("negative"));
    }
}

//! JSON numbers in logs, such as times and durations, scaled to integers without floating point.
//!
//! `1646861401.5241024` seconds has more digits than a `f64` can represent, and rounding could change the
//! order of times.

/// `mantissa` x 10^`exponent`, with a sign. Digits for which the mantissa has no room are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// A limit for exponents in the text, so that they do not overflow. Larger ones fit no integer anyway, and smaller ones
/// give zero.
const EXPONENT_MAX: i32 = 100_000;

impl Decimal {
    /// Parses the JSON number at the start of `bytes`. Also returns its length in bytes.
    #[inline]
    pub(super) fn prefix(bytes: &[u8]) -> Option<(Self, usize)> {
        let negative = bytes.first() == Some(&b'-');
        let start = usize::from(negative);
        let mut number = Self { negative, mantissa: 0, exponent: 0 };
        let mut at = number.digits(bytes, start, 0);
        if at == start || (bytes[start] == b'0' && at > start + 1) {
            return None;
        }
        if bytes.get(at) == Some(&b'.') {
            let end = number.digits(bytes, at + 1, -1);
            if end == at + 1 {
                return None;
            }
            at = end;
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            at = number.power(bytes, at + 1)?;
        }
        Some((number, at))
    }

    /// Parses a JSON number that takes up all of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Self::prefix(bytes).and_then(|(number, length)| (length == bytes.len()).then_some(number))
    }

    /// Whether it has neither a decimal point nor a negative exponent.
    pub(super) const fn is_whole(self) -> bool {
        self.exponent >= 0
    }

    /// Appends the digits from `at` to the mantissa and returns their end. `step` is 0 before the decimal point and -1
    /// after it. Each digit adds `step` to the exponent if the mantissa has room for it, and `step + 1` otherwise.
    fn digits(&mut self, bytes: &[u8], mut at: usize, step: i32) -> usize {
        while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            if self.mantissa < u64::MAX / 10 {
                self.mantissa = self.mantissa * 10 + u64::from(digit);
                self.exponent += step;
            } else {
                self.exponent = (self.exponent + step + 1).min(EXPONENT_MAX);
            }
            at += 1;
        }
        at
    }

    /// Parses the exponent at `at` and returns its end.
    fn power(&mut self, bytes: &[u8], mut at: usize) -> Option<usize> {
        let negative = bytes.get(at) == Some(&b'-');
        at += usize::from(matches!(bytes.get(at), Some(b'-' | b'+')));
        let start = at;
        let mut power = 0i32;
        while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            power = (power * 10 + i32::from(digit)).min(EXPONENT_MAX);
            at += 1;
        }
        self.exponent += if negative { -power } else { power };
        (at > start).then_some(at)
    }

    /// This number times 10^`shift`, truncated to an integer; `None` if it is negative or does not fit.
    #[inline]
    pub(super) fn scaled(self, shift: i32) -> Option<u64> {
        if self.mantissa == 0 {
            return Some(0);
        }
        if self.negative {
            return None;
        }
        let exponent = self.exponent + shift;
        let power = 10u64.checked_pow(exponent.unsigned_abs());
        if exponent >= 0 {
            power.and_then(|power| self.mantissa.checked_mul(power))
        } else {
            Some(power.map_or(0, |power| self.mantissa / power))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, shift: i32, expect: Option<u64>) {
        assert_eq!(Decimal::parse(text.as_bytes()).and_then(|number| number.scaled(shift)), expect, "{text}");
    }

    #[test]
    fn a_number_is_scaled_without_losing_a_digit() {
        check("1646861401.5241024", 9, Some(1_646_861_401_524_102_400));
        check("0.1", 6, Some(100_000));
        check("18446744073709551615", 0, Some(u64::MAX / 10 * 10));
        check("1000", 6, Some(1_000_000_000));
        check("1.5e3", 0, Some(1500));
        check("15E-1", 0, Some(1));
        check("-0", 0, Some(0));
        check("0.0000000000000000000000000000001", 9, Some(0));
    }

    #[test]
    fn numbers_that_do_not_fit_or_are_not_json_are_rejected() {
        for text in ["1e308", "99999999999999999999999", "-1", "-0.5", "1e99999999999999999999"] {
            check(text, 9, None);
        }
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "NaN", "Infinity", "0x10", "1_000", " 1"] {
            assert_eq!(Decimal::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_million_digits_are_read_in_one_pass() {
        let digits = vec![b'9'; 1_000_000];
        assert_eq!(Decimal::parse(&digits).and_then(|number| number.scaled(0)), None);
        let mut small = b"0.".to_vec();
        small.resize(1_000_000, b'0');
        assert_eq!(Decimal::parse(&small).and_then(|number| number.scaled(9)), Some(0));
    }

    proptest! {
        #[test]
        fn every_millisecond_with_nanoseconds_comes_back(nanos in 0u64..10_000_000_000_000_000) {
            let text = format!("{}.{:06}", nanos / 1_000_000, nanos % 1_000_000);
            prop_assert_eq!(Decimal::parse(text.as_bytes()).and_then(|number| number.scaled(6)), Some(nanos));
        }

        #[test]
        fn any_number_agrees_with_floating_point(value in -1e12f64..1e12) {
            for text in [format!("{value}"), format!("{value:e}")] {
                let scaled = Decimal::parse(text.as_bytes()).unwrap().scaled(3);
                if value < 0.0 {
                    prop_assert_eq!(scaled, None);
                } else {
                    prop_assert!((scaled.unwrap() as f64 - value * 1e3).abs() <= 1.0 + value * 1e-12);
                }
            }
        }
    }
}

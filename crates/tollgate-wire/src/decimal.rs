//! Decimal numbers as 64-bit integers, written and parsed without allocation, for the other modules of this crate.
//! JSON numbers, with a sign and an exponent, are in `log/decimal.rs`.

/// Appends `value` to `out`.
pub fn put(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Parses a number without sign or white space. It may have at most 19 digits, so that it fits 64 bits.
pub fn parse(text: &[u8]) -> Option<u64> {
    let is_number = (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |number: u64, digit| number * 10 + u64::from(digit - b'0')))
}

/// Parses digits, optionally followed by a point and further digits. The result is in units of 10^-`places`, rounded
/// down: with 3 places, `1.5` gives 1500. `digits_max` is the maximum number of digits before the point and after it.
/// `digits_max.0 + places` must be at most 19, so that the result fits 64 bits.
pub fn parse_fixed(text: &[u8], digits_max: (usize, usize), places: usize) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b"0"[..]),
    };
    let is_number = |text: &[u8], max: usize| (1..=max).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    if !is_number(whole, digits_max.0) || !is_number(fraction, digits_max.1) {
        return None;
    }
    let kept = fraction.iter().chain(core::iter::repeat(&b'0')).take(places);
    Some(whole.iter().chain(kept).fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_read_back_as_it_was_written(value: u64, shift in 0..64_u32) {
            let mut text = Vec::new();
            put(&mut text, value >> shift);
            prop_assert_eq!(core::str::from_utf8(&text).unwrap(), (value >> shift).to_string());
            prop_assert_eq!(parse(&text), (text.len() < 20).then_some(value >> shift));
        }
    }

    #[test]
    fn only_digits_are_a_number() {
        for text in ["", "+1", "-1", " 1", "1 ", "1.0", "0x1", "00000000000000000001"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}

//! Numbers in decimal digits, without memory of their own: some of these are written for every request.

/// Appends `value` to `out`.
pub fn put(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    out.extend_from_slice(write(&mut digits, value));
}

/// Writes `value` at the end of `digits`, and says where it stands.
pub fn write(digits: &mut [u8; 20], mut value: u64) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_written_as_the_standard_library_writes_it(value: u64, shift in 0..64_u32) {
            let value = value >> shift;
            let mut out = b"x".to_vec();
            put(&mut out, value);
            prop_assert_eq!(out, format!("x{value}").into_bytes());
        }
    }
}

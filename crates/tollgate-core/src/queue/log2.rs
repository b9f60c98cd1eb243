//! Integer logarithms: the core has no floating point.

/// One octave (a factor of 2) in the units of [`log2`].
pub(super) const OCTAVE: i32 = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 12;

/// The logarithm to the base 2, in parts of an [`OCTAVE`], within a hundredth of one.
pub(super) const fn log2(value: u64) -> i32 {
    let value = if value == 0 { 1 } else { value };
    let whole = value.ilog2();
    // The next bits are the fraction, up to 0.086 below the true logarithm.
    let bits = ((value as u128) << OCTAVE_BITS >> whole) as i32 - OCTAVE;
    let bulge = bits as i64 * (OCTAVE - bits) as i64 * 344 / 1000 / OCTAVE as i64;
    whole as i32 * OCTAVE + bits + bulge as i32
}

/// The value with this logarithm, at most 9 % too large.
pub(super) const fn exp2(log2: i32) -> u64 {
    let (whole, bits) = (log2.div_euclid(OCTAVE), log2.rem_euclid(OCTAVE));
    (((OCTAVE + bits) as u128) << whole >> OCTAVE_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_within_a_hundredth_of_an_octave() {
        for value in (1..100_000).chain([u64::MAX, 1 << 40, (1 << 40) + (1 << 39)]) {
            let exact = (value as f64).log2();
            assert!((f64::from(log2(value)) / f64::from(OCTAVE) - exact).abs() < 0.01, "{value}");
        }
        assert_eq!(log2(0), 0);
    }

    #[test]
    fn the_value_of_a_logarithm_is_within_a_tenth() {
        for value in [1, 2, 3, 1000, 20_000_000, 300_000_000, u64::MAX / 2] {
            let again = exp2(log2(value)) as f64 / value as f64;
            assert!((0.98..1.1).contains(&again), "{value}: {again}");
        }
    }
}

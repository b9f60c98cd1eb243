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
}

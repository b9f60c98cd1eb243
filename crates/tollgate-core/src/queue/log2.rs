//! Integer logarithms: the core has no floating point.

/// One octave (a factor of 2) in the units of [`log2`].
pub(super) const OCTAVE: i32 = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 12;
/// Deviations are capped at three octaves, because requests of one route are not all alike.
pub(super) const SURPRISE_MAX: i32 = 3 * OCTAVE;

/// The logarithm to the base 2, in parts of an [`OCTAVE`], within a hundredth of one.
pub(super) fn log2(value: u64) -> i32 {
    let value = value.max(1);
    let whole = value.ilog2();
    // The next bits are the fraction, up to 0.086 below the true logarithm.
    let bits = (u128::from(value) << OCTAVE_BITS >> whole) as i32 - OCTAVE;
    let bulge = i64::from(bits) * i64::from(OCTAVE - bits) * 344 / 1000 / i64::from(OCTAVE);
    whole as i32 * OCTAVE + bits + bulge as i32
}

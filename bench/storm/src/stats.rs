//! Statistics over runs.

/// The middle value. Of an even number of values it is the lower of the two in the middle, so that it is always a
/// measured one. Missing values (NaN) sort last.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_a_measured_value_and_never_is_the_longest() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![1.0, f64::INFINITY]) - 1.0).abs() < 1e-9);
        assert!(median(vec![1.0, f64::INFINITY, f64::INFINITY]).is_infinite());
        assert!(median(vec![]).is_nan());
    }
}

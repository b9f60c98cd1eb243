//! A quantity over time, as the integral of a rate that is constant within slots. The pricing of a replay uses it to
//! sum the shares of cores between the start and the end of a request.

use tollgate_core::time::Moment;

/// The integral of a rate. Before the first slot and after the last one the rate is zero.
#[derive(Clone, Debug)]
pub(super) struct Cumulative {
    /// The start of the first slot.
    base_ns: u64,
    /// The width of a slot.
    width_ns: u64,
    /// The integral up to the start of each slot, in rate x seconds, and up to the end of the last one.
    sums: Vec<f64>,
}

impl Cumulative {
    /// The integral of these rates, one for each slot. The first slot starts at `base_s`; each is `width_s` wide.
    pub(super) fn new(base_s: u64, width_s: u64, rates: impl Iterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        let sums = rates.map(|rate| {
            sum += rate * width_s as f64;
            sum
        });
        let sums = std::iter::once(0.0).chain(sums).collect();
        let nanos = |seconds: u64| seconds.saturating_mul(1_000_000_000);
        Self { base_ns: nanos(base_s), width_ns: nanos(width_s).max(1), sums }
    }

    /// The integral between two moments.
    pub(super) fn between(&self, start: Moment, end: Moment) -> f64 {
        (self.until(end) - self.until(start)).max(0.0)
    }

    /// The integral up to a moment.
    fn until(&self, at: Moment) -> f64 {
        let offset = at.as_nanos().saturating_sub(self.base_ns);
        let slot = usize::try_from(offset / self.width_ns).unwrap_or(usize::MAX);
        match (self.sums.get(slot), self.sums.get(slot.saturating_add(1))) {
            (Some(before), Some(after)) => {
                before + (after - before) * (offset % self.width_ns) as f64 / self.width_ns as f64
            }
            _ => self.sums.last().copied().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_slots_count_in_proportion() {
        let cumulative = Cumulative::new(100, 2, [1.0, 0.5, 0.0].into_iter());
        let at = Moment::from_millis;
        for (start_ms, end_ms, expect) in [
            (100_000, 101_000, 1.0),
            (101_000, 103_000, 1.5),
            (0, 1_000_000, 3.0),
            (104_000, 106_000, 0.0),
            (103_000, 101_000, 0.0),
            (0, 1, 0.0),
        ] {
            assert!((cumulative.between(at(start_ms), at(end_ms)) - expect).abs() < 1e-9, "{start_ms} {end_ms}");
        }
        assert_eq!(cumulative.between(Moment::ZERO, Moment::MAX), 3.0);
    }
}

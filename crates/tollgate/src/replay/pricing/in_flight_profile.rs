//! The number of requests in flight over time, in a bounded number of slots.
//!
//! Each slot has the mean over its time. Most logs have times in whole seconds, so a finer profile would show
//! requests together that were not. A request adds to its first and last slot in proportion and to those between
//! through a list of changes, so that a long request costs no more than a short one.

use tollgate_core::time::{Moment, Span};

use super::cumulative::Cumulative;

/// The maximum number of slots. With slots of a second they cover twelve days; beyond that slots become wider.
const SLOTS_MAX: usize = 1 << 20;
/// The maximum distance from the first request. A wrong date must not make the slots wider.
const SPAN_MAX_S: u64 = 400 * 86_400;
/// Requests may start this long before the first line.
const LEAD_S: u64 = 600;
/// A request counts as in flight for at most this long: longer ones wait for something else than CPU time.
const STAY_MAX: Span = Span::from_secs(3600);
const SECOND_NS: u64 = 1_000_000_000;

/// Counts requests in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightProfile {
    /// The start of the first slot; `None` before the first request.
    base_s: Option<u64>,
    /// Slots are `1 << doublings` seconds wide.
    doublings: u32,
    /// By slot: the time of requests that were in flight for only a part of the slot.
    partial_ns: Vec<u64>,
    /// By slot: the number of requests that were in flight for the whole slot, less that of the slot before.
    changes: Vec<i64>,
}

impl InFlightProfile {
    /// Adds a request.
    pub(super) fn add(&mut self, start: Moment, end: Moment) {
        let base_s = *self.base_s.get_or_insert_with(|| (end.as_nanos() / SECOND_NS).saturating_sub(LEAD_S));
        let offset = |at: Moment| at.as_nanos().saturating_sub(base_s.saturating_mul(SECOND_NS));
        let end_ns = offset(end.min(start + STAY_MAX));
        let start_ns = offset(start).min(end_ns);
        if end_ns / SECOND_NS >= SPAN_MAX_S {
            return;
        }
        while self.slot(end_ns) >= SLOTS_MAX {
            self.widen();
        }
        let (first, last, width_ns) = (self.slot(start_ns), self.slot(end_ns), SECOND_NS << self.doublings);
        if self.partial_ns.len() <= last {
            self.partial_ns.resize(last + 1, 0);
            self.changes.resize(last + 1, 0);
        }
        if first == last {
            self.partial_ns[first] += end_ns - start_ns;
            return;
        }
        self.partial_ns[first] += width_ns - start_ns % width_ns;
        self.partial_ns[last] += end_ns % width_ns;
        self.changes[first + 1] += 1;
        self.changes[last] -= 1;
    }

    /// The mean number of requests in flight in each slot.
    pub(super) fn means(&self) -> impl Iterator<Item = f64> {
        let width_ns = (SECOND_NS << self.doublings) as f64;
        let mut full = 0i64;
        self.partial_ns.iter().zip(&self.changes).map(move |(partial_ns, change)| {
            full += change;
            full as f64 + *partial_ns as f64 / width_ns
        })
    }

    /// The integral of `rate`, a function of the number in flight.
    pub(super) fn integral(&self, rate: impl Fn(f64) -> f64) -> Cumulative {
        Cumulative::new(self.base_s.unwrap_or(0), 1 << self.doublings, self.means().map(rate))
    }

    /// The width of a slot.
    pub(super) const fn slot_width(&self) -> Span {
        Span::from_secs(1 << self.doublings)
    }

    /// The index of the slot at this time after the base.
    fn slot(&self, offset_ns: u64) -> usize {
        (offset_ns / (SECOND_NS << self.doublings)) as usize
    }

    /// Merges each two slots into one.
    fn widen(&mut self) {
        let width_ns = SECOND_NS << self.doublings;
        let slots: Vec<_> = self.means().map(|mean| (mean * width_ns as f64) as u64).collect();
        self.partial_ns = slots.chunks(2).map(|pair| pair.iter().sum()).collect();
        self.changes = vec![0; self.partial_ns.len()];
        self.doublings += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BEGIN_MS: u64 = 1_794_441_600_000;

    fn profile(stays: &[(u64, u64)]) -> InFlightProfile {
        let mut profile = InFlightProfile::default();
        for (start_ms, length_ms) in stays {
            let start = Moment::from_millis(BEGIN_MS + start_ms);
            profile.add(start, start + Span::from_millis(*length_ms));
        }
        profile
    }

    #[test]
    fn a_slot_has_the_mean_number_in_flight() {
        let profile = profile(&[(0, 500), (500, 2000), (1000, 1000), (3000, 0)]);
        let means: Vec<_> = profile.means().skip_while(|mean| *mean == 0.0).collect();
        assert_eq!(means, [1.0, 2.0, 0.5, 0.0]);
    }

    #[test]
    fn memory_is_bounded_for_any_times() {
        let mut profile = InFlightProfile::default();
        for at in [0, 1, BEGIN_MS, u64::MAX / 1_000_000, 300 * 86_400_000] {
            let at = Moment::from_millis(at);
            profile.add(at, at + Span::MAX);
            profile.add(at.before(Span::MAX), at);
        }
        assert!(profile.partial_ns.len() <= SLOTS_MAX);
    }

    proptest! {
        #[test]
        fn the_integral_is_the_sum_of_all_stays(
            stays in prop::collection::vec((0u64..100 * 86_400_000, 0u64..3_600_000), 1..50),
        ) {
            let total_s = stays.iter().map(|stay| stay.1).sum::<u64>() as f64 / 1e3;
            let integral = profile(&stays).integral(|mean| mean);
            let sum_s = integral.between(Moment::ZERO, Moment::MAX);
            // Requests may begin before the first line by more than the profile has room for.
            prop_assert!(sum_s <= total_s + 1e-3);
            let early = stays.iter().any(|stay| stay.0 + 500_000 < stays[0].0 + stays[0].1);
            prop_assert!(early || (sum_s - total_s).abs() < 1e-3, "{} {}", sum_s, total_s);
        }
    }
}

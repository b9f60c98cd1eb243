//! Histograms of durations, for the metrics of gates and stores. There are four buckets per doubling, so that a
//! percentile has an error of at most a fifth.

use core::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::Span;

/// The binary logarithm of the start of the first octave, in microseconds: 64.
const FIRST_OCTAVE: u32 = 6;
/// The number of octaves (doublings): from 64 microseconds to 67 seconds.
const OCTAVES: usize = 20;
/// The number of buckets per octave.
const PARTS: usize = 4;
/// The number of counts: one for shorter durations, one per bucket, and one for longer durations.
const PLACES: usize = 1 + OCTAVES * PARTS + 1;

/// A histogram. Counting is one atomic addition.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; PLACES],
    sum_ns: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: [u64; PLACES],
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: core::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn count(&self, length: Span) {
        self.counts[place(length)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(length.as_nanos(), Ordering::Relaxed);
    }

    /// A snapshot.
    pub fn read(&self) -> HistogramSnapshot {
        let counts = core::array::from_fn(|place| self.counts[place].load(Ordering::Relaxed));
        HistogramSnapshot { counts, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

impl HistogramSnapshot {
    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = core::array::from_fn(|place| self.counts[place].saturating_sub(earlier.counts[place]));
        Self { counts, sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns) }
    }

    /// The number of durations.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations, in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The duration that this percentage does not exceed; none if nothing was counted.
    pub fn percentile(&self, percent: u64) -> Option<Span> {
        let total = self.total();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = |&count: &u64| {
            seen += count;
            seen >= wanted
        };
        let place = (total > 0).then(|| self.counts.iter().position(reached))??;
        Some(Span::from_nanos(end_micros(place.min(PLACES - 2)) * 1000))
    }

    /// The counts for metrics, one bucket per doubling: its upper bound in seconds, and the durations in it alone.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let mut buckets = vec![(end_micros(0) as f64 / 1e6, self.counts[0])];
        for octave in 0..OCTAVES {
            let first = 1 + octave * PARTS;
            let count = self.counts[first..first + PARTS].iter().sum();
            buckets.push((end_micros(first + PARTS - 1) as f64 / 1e6, count));
        }
        buckets.push((f64::INFINITY, self.counts[PLACES - 1]));
        buckets
    }
}

/// The index of the count of a duration.
fn place(length: Span) -> usize {
    let micros = length.as_nanos() / 1000;
    if micros >> FIRST_OCTAVE == 0 {
        return 0;
    }
    let octave = micros.ilog2();
    let part = (micros >> (octave - 2)) as usize % PARTS;
    (1 + (octave - FIRST_OCTAVE) as usize * PARTS + part).min(PLACES - 1)
}

/// The upper bound of the durations of the count at `place`, in microseconds.
fn end_micros(place: usize) -> u64 {
    let Some(place) = place.checked_sub(1) else { return 1 << FIRST_OCTAVE };
    let (octave, part) = (FIRST_OCTAVE as usize + place / PARTS, place % PARTS);
    ((PARTS + part + 1) as u64) << (octave - 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_length_is_in_the_place_that_ends_after_it(micros in 0u64..100_000_000) {
            let place = place(Span::from_nanos(micros * 1000));
            prop_assert!(place == PLACES - 1 || micros < end_micros(place));
            prop_assert!(place == 0 || micros >= end_micros(place - 1));
        }
    }

    #[test]
    fn percentiles_are_right_to_a_quarter() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().percentile(50), None);
        (1..=1000).for_each(|millis| histogram.count(Span::from_millis(millis)));
        let counted = histogram.read();
        for (percent, millis) in [(50, 500), (99, 990), (100, 1000)] {
            let shown = counted.percentile(percent).unwrap().as_millis_ceil();
            assert!((millis..=millis * 5 / 4).contains(&shown), "{percent}: {shown}");
        }
        assert_eq!(counted.total(), 1000);
        assert_eq!(counted.buckets().iter().map(|bucket| bucket.1).sum::<u64>(), 1000);
        histogram.count(Span::from_secs(9999));
        assert_eq!(histogram.read().since(&counted).total(), 1);
    }
}

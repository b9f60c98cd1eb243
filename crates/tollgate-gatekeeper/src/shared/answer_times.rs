//! A histogram of answer times.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// The upper bounds of the buckets in microseconds. Longer times are in the last bucket.
const STEPS_US: [u64; 13] = [50, 100, 200, 400, 700, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 500_000];

/// The live histogram.
#[derive(Debug, Default)]
pub(super) struct AnswerHistogram {
    steps: [AtomicU64; STEPS_US.len() + 1],
    total_ns: AtomicU64,
}

/// A snapshot of the histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerTimes {
    /// The upper bound of each bucket in seconds, and its count (not cumulative).
    pub steps: [(f64, u64); STEPS_US.len() + 1],
    /// The sum of all times in seconds.
    pub total_secs: f64,
}

impl AnswerHistogram {
    pub(super) fn add(&self, time: Duration) {
        let micros = time.as_micros();
        let step = STEPS_US.partition_point(|most| u128::from(*most) < micros);
        self.steps[step].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.total_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> AnswerTimes {
        let end = |step: usize| STEPS_US.get(step).map_or(f64::INFINITY, |micros| *micros as f64 / 1e6);
        AnswerTimes {
            steps: core::array::from_fn(|step| (end(step), self.steps[step].load(Ordering::Relaxed))),
            total_secs: self.total_ns.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

impl AnswerTimes {
    /// The number of answers.
    pub fn count(&self) -> u64 {
        self.steps.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_step_that_is_not_shorter() {
        let times = AnswerHistogram::default();
        for micros in [0, 50, 51, 1_000, 1_001, 10_000_000] {
            times.add(Duration::from_micros(micros));
        }
        let so_far = times.so_far();
        let counts: Vec<_> = so_far.steps.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(counts, [(0.000_05, 2), (0.000_1, 1), (0.001, 1), (0.002, 1), (f64::INFINITY, 1)]);
        assert_eq!(so_far.count(), 6);
        assert!((so_far.total_secs - 10.002_102).abs() < 1e-9);
    }
}

//! Samples events that are too frequent to be counted individually: refusals, for the lists of throttled callers that
//! operators see.
//!
//! Counting a caller by name accesses memory outside of the cache, which takes longer than its refusal, and an
//! operator does not need to know whether a caller was refused 81,240 or 81,260 times. In each interval of half a
//! second, the first 512 events are therefore counted individually, and then one in 32 at random, with a weight of
//! 32. A regular pattern would always count or always miss callers that take turns. These counts decide nothing;
//! limits and flags have their own.

use core::cell::Cell;

use tollgate_core::time::Moment;

/// The length of an interval as a power of two in nanoseconds: about half a second.
const INTERVAL_NS_LOG2: u32 = 29;
/// One of this many events is counted, with this weight.
const WEIGHT: u64 = 32;

/// The sampler of one thread.
#[derive(Debug, Default)]
pub struct Sample {
    /// The number of the current interval.
    interval: Cell<u64>,
    /// The number of events in it that were counted individually.
    counted: Cell<u32>,
}

impl Sample {
    /// The number of events per interval that are counted individually.
    pub const ONE_BY_ONE: u32 = 512;

    /// A sampler without events.
    pub const fn new() -> Self {
        Self { interval: Cell::new(0), counted: Cell::new(0) }
    }

    /// The weight with which the current event is counted; `None` if it is not sampled.
    #[inline]
    pub fn times(&self, now: Moment) -> Option<u64> {
        let interval = now.as_nanos() >> INTERVAL_NS_LOG2;
        // Only a later interval resets the count: a request that was held has the time of its arrival.
        if interval > self.interval.get() {
            self.interval.set(interval);
            self.counted.set(0);
        }
        let counted = self.counted.get();
        if counted < Self::ONE_BY_ONE {
            self.counted.set(counted + 1);
            return Some(1);
        }
        (fastrand::u64(..WEIGHT) == 0).then_some(WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_events_are_counted_individually() {
        let sample = Sample::new();
        for secs in 0..3 {
            assert!((0..Sample::ONE_BY_ONE).all(|_| sample.times(Moment::from_millis(secs * 1000)) == Some(1)));
        }
    }

    #[test]
    fn many_alternating_callers_are_counted_approximately() {
        for callers in [1, 16, 32, 100] {
            let mut counts = vec![0; callers];
            let sample = Sample::new();
            for _ in 0..20_000 {
                counts.iter_mut().for_each(|count| *count += sample.times(Moment::ZERO).unwrap_or(0));
            }
            for count in counts {
                assert!((16_500..23_500).contains(&count), "{count} of {callers}");
            }
        }
    }

    #[test]
    fn few_of_many_events_are_sampled() {
        let sample = Sample::new();
        let looked_at = (0..100_000).filter(|_| sample.times(Moment::ZERO).is_some()).count();
        assert!(looked_at < 10_000, "{looked_at}");
    }

    #[test]
    fn alternating_times_do_not_increase_the_samples() {
        let sample = Sample::new();
        let times = (0..100_000).map(|turn| Moment::from_millis(10_000 - turn % 2 * 5000));
        let looked_at = times.filter(|now| sample.times(*now).is_some()).count();
        assert!(looked_at < 10_000, "{looked_at}");
    }
}

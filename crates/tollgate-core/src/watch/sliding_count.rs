//! A count over a sliding window, in bounded memory.
//!
//! A list of timestamps is exact but grows with every report, and a ring of counters loses the time within
//! its slices. This keeps timestamped counts, and adds to the last one while that is younger than
//! 1/[`SLICES`] of the window. Counts further apart are exact; closer ones expire together with the first of
//! them. The sum is therefore never too high, and too low by at most the counts of one slice.

use crate::time::{Moment, Span};
use alloc::collections::VecDeque;

/// The number of slices in a window. More of them make the count more exact and take more memory.
const SLICES: u64 = 60;

/// Timestamped counts, none older than a window.
#[derive(Clone, Debug, Default)]
pub(super) struct SlidingCount {
    points: VecDeque<Point>,
    /// The time of the newest count.
    last: Moment,
    /// The sum of all points. Their number is too small for an overflow.
    sum: u128,
}

/// The counts of one slice.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// The time of the first of them.
    at: Moment,
    count: u64,
}

impl SlidingCount {
    /// Adds `count` at `now`, and drops expired points.
    pub(super) fn add(&mut self, count: u64, window: Span, now: Moment) {
        self.expire(window, now);
        self.last = now;
        let slice = Span::from_nanos(window.as_nanos() / SLICES);
        if self.points.back().is_none_or(|point| now >= point.at + slice) {
            self.points.push_back(Point { at: now, count: 0 });
        }
        if let Some(point) = self.points.back_mut() {
            let count = count.min(u64::MAX - point.count);
            point.count += count;
            self.sum += u128::from(count);
        }
    }

    /// Drops points that are older than `window`. A point exactly as old as the window stays.
    pub(super) fn expire(&mut self, window: Span, now: Moment) {
        while let Some(point) = self.points.pop_front_if(|point| now.since(point.at) > window) {
            self.sum -= u128::from(point.count);
        }
    }

    /// Removes all points and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.points.clear();
        (self.last, self.sum) = (Moment::ZERO, 0);
    }

    /// The sum of all points.
    pub(super) fn sum(&self) -> u64 {
        self.sum.min(u64::MAX.into()) as u64
    }

    /// Each count with its time, followed by a zero at the time of the newest count.
    pub(super) fn points(&self) -> impl Iterator<Item = (Moment, u64)> {
        let newest = (!self.points.is_empty()).then_some((self.last, 0));
        self.points.iter().map(|point| (point.at, point.count)).chain(newest)
    }

    /// The times of the oldest and of the newest count; `None` if there is none.
    pub(super) fn span(&self) -> Option<(Moment, Moment)> {
        self.points.front().map(|point| (point.at, self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_too_high_and_too_low_by_at_most_one_slice(
            steps in prop::collection::vec((0u64..2_000, 0u64..100), 1..300),
            window in 1u64..30_000,
        ) {
            let (mut sliding, mut all, mut now) = (SlidingCount::default(), Vec::new(), 0);
            for (elapsed, count) in steps {
                now += elapsed;
                all.push((now, count));
                sliding.add(count, Span::from_nanos(window), Moment::from_nanos(now));
                let within = |span: u64| all.iter().filter(|(at, _)| now - at <= span).map(|(_, count)| count).sum::<u64>();
                prop_assert!(sliding.sum() <= within(window));
                prop_assert!(sliding.sum() >= within(window - window / SLICES));
                prop_assert!(sliding.points.len() <= SLICES as usize * 2 + 1);
            }
        }
    }

    #[test]
    fn sums_saturate() {
        let mut sliding = SlidingCount::default();
        for second in 0..100 {
            sliding.add(u64::MAX, Span::from_secs(60), Moment::from_millis(1000 * second));
        }
        assert_eq!(sliding.sum(), u64::MAX);
    }
}

//! How many in the last so-and-so long, in bounded memory.
//!
//! A list of points is exact and grows with every report; a ring of counters forgets when within its slice a point fell. This keeps
//! points, and adds to the last one while that is younger than a [`SLICES`]th of the window. So points that far apart are counted
//! exactly, closer ones leave the window together with the first of them: the count is never too high, and too low by at most what came
//! within one slice.

use crate::time::{Moment, Span};
use alloc::collections::VecDeque;

/// Into so many parts a window is divided.
const SLICES: u64 = 60;

/// Counts with their times, none older than a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Rolling {
    points: VecDeque<Point>,
    last: Moment,
    /// Of all points, which are too few for it to overflow.
    sum: u128,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    at: Moment,
    count: u64,
}

impl Rolling {
    /// Counts `count` at `now`, and drops what has left the window.
    pub(super) fn add(&mut self, count: u64, window: Span, now: Moment) {
        self.expire(window, now);
        self.last = now;
        let slice = Span::from_nanos(window.as_nanos() / SLICES);
        match self.points.back_mut() {
            Some(point) if now < point.at + slice => {
                let count = count.min(u64::MAX - point.count);
                point.count += count;
                self.sum += u128::from(count);
            }
            _ => {
                self.points.push_back(Point { at: now, count });
                self.sum += u128::from(count);
            }
        }
    }

    /// Drops what is older than the window. What is exactly as old as the window is in it.
    pub(super) fn expire(&mut self, window: Span, now: Moment) {
        while let Some(point) = self.points.pop_front_if(|point| now.since(point.at) > window) {
            self.sum -= u128::from(point.count);
        }
    }

    /// Drops everything, and keeps the memory for what comes.
    pub(super) fn clear(&mut self) {
        self.points.clear();
        (self.last, self.sum) = (Moment::ZERO, 0);
    }

    /// The sum of what has not been dropped.
    pub(super) fn sum(&self) -> u64 {
        self.sum.min(u64::MAX.into()) as u64
    }

    /// Each count with its time, and at last nothing at the time of the newest.
    pub(super) fn points(&self) -> impl Iterator<Item = (Moment, u64)> {
        let newest = (!self.points.is_empty()).then_some((self.last, 0));
        self.points.iter().map(|point| (point.at, point.count)).chain(newest)
    }

    /// When the oldest that has not been dropped was counted, and the newest; `None` when there is nothing.
    pub(super) fn stretch(&self) -> Option<(Moment, Moment)> {
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
            let (mut rolling, mut all, mut now) = (Rolling::default(), Vec::new(), 0);
            for (elapsed, count) in steps {
                now += elapsed;
                all.push((now, count));
                rolling.add(count, Span::from_nanos(window), Moment::from_nanos(now));
                let within = |span: u64| all.iter().filter(|(at, _)| now - at <= span).map(|(_, count)| count).sum::<u64>();
                prop_assert!(rolling.sum() <= within(window));
                prop_assert!(rolling.sum() >= within(window - window / SLICES));
                prop_assert!(rolling.points.len() <= SLICES as usize * 2 + 1);
            }
        }
    }

    #[test]
    fn sums_saturate() {
        let mut rolling = Rolling::default();
        for second in 0..100 {
            rolling.add(u64::MAX, Span::from_secs(60), Moment::from_millis(1000 * second));
        }
        assert_eq!(rolling.sum(), u64::MAX);
    }
}

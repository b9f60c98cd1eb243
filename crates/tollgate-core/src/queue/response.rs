//! Whether the times of requests grow with the number in flight, their concurrency: for the in-flight limit
//! (`limit.rs`).
//!
//! A request that computes takes twice as long when twice as many compute. One that waits for a database does not. The
//! slope of the logarithm of the time over the logarithm of the number in flight tells which: about one, or about zero.
//! The answer is given only when the number has varied enough for the slope to be certainly on one side of a threshold.

use super::log2::OCTAVE;

/// How many requests are remembered.
const MEMORY: i64 = 256;
/// The variance that the number in flight must have for an answer: an eighth of an octave, squared. The variance of the
/// times that the number does not explain is taken to be at least a quarter of this: a sixteenth of an octave, squared.
const VARIANCE_MIN: i128 = (OCTAVE as i128 / 8).pow(2);

/// Deviations of times are capped at three octaves (a factor of 8), because requests of one route are not all alike.
const DEVIATION_MAX: i64 = 3 * OCTAVE as i64;

/// A threshold for a slope, and how certain the answer has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    /// The threshold, in twentieths.
    pub(super) twentieths: i128,
    /// The required distance between the slope and the threshold, in standard errors.
    pub(super) certain: i128,
    /// Requests that it takes for an answer.
    pub(super) samples_min: i64,
}

/// Whether requests of a route compute or sleep.
pub(super) const COMPUTES: Test = Test { twentieths: 10, certain: 4, samples_min: 64 };
/// Whether times grow with the number in flight almost in proportion. If so, a smaller number costs little throughput:
/// at most a tenth for every halving.
pub(super) const ONLY_SHARE: Test = Test { twentieths: 17, certain: 2, samples_min: 12 };
/// The same question before the number is raised. It takes more certainty, because an error is expensive.
pub(super) const STILL_ROOM: Test = Test { twentieths: 17, certain: 4, samples_min: 12 };

/// A linear regression in which old samples fade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Response {
    samples: i64,
    /// The mean logarithm of the number in flight.
    concurrency: i64,
    /// The mean logarithm of the time.
    took: i64,
    concurrency_squared: i64,
    took_squared: i64,
    product: i64,
}

/// Whether the slope is certainly above the threshold of a [`Test`] (yes) or below it (no).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Yes,
    No,
    Unclear,
}

impl Response {
    pub(super) fn add(&mut self, concurrency: i32, took: i32) {
        self.samples = (self.samples + 1).min(MEMORY);
        let (concurrency, took) = (i64::from(concurrency) - self.concurrency, i64::from(took) - self.took);
        self.concurrency += concurrency / self.samples;
        self.took += took / self.samples;
        if self.samples == 1 {
            return;
        }
        let took = took.clamp(-DEVIATION_MAX, DEVIATION_MAX);
        self.concurrency_squared += concurrency * concurrency - self.concurrency_squared / MEMORY;
        self.took_squared += took * took - self.took_squared / MEMORY;
        self.product += concurrency * took - self.product / MEMORY;
    }

    pub(super) fn follows(&self, test: Test) -> Follows {
        let samples = i128::from(self.samples);
        // The sum of squares by which concurrency varied.
        let (varied, product) = (i128::from(self.concurrency_squared), i128::from(self.product));
        if self.samples < test.samples_min || varied < samples * VARIANCE_MIN {
            return Follows::Unclear;
        }
        let left = (i128::from(self.took_squared) - product * product / varied).max(samples * VARIANCE_MIN / 4);
        // The slope less the threshold, times the number's variance; its standard error is sqrt(left * varied /
        // samples).
        let off = 20 * product - test.twentieths * varied;
        // Times that fall while the number grows have another cause: the cost of the route has changed.
        let is_falling = 4 * product < -varied;
        if is_falling || off * off * samples < (20 * test.certain).pow(2) * left * varied {
            Follows::Unclear
        } else if off > 0 {
            Follows::Yes
        } else {
            Follows::No
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A route whose times follow the concurrency with this slope, in percent, and differ by up to so many octaves for
    /// other reasons.
    fn response(slope_percent: i32, concurrency_octaves: i32, noise_octaves: i32, samples: u32, seed: u64) -> Response {
        let mut response = Response::default();
        let mut state = seed | 1;
        let mut random = |below: i32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i32 % below.max(1)
        };
        for _ in 0..samples {
            let concurrency = random(concurrency_octaves * OCTAVE);
            response.add(concurrency, 24 * OCTAVE + concurrency * slope_percent / 100 + random(noise_octaves * OCTAVE));
        }
        response
    }

    proptest! {
        #[test]
        fn what_computes_follows_and_what_sleeps_does_not(seed in any::<u64>()) {
            prop_assert_eq!(response(100, 3, 1, 400, seed).follows(COMPUTES), Follows::Yes);
            prop_assert_eq!(response(0, 3, 1, 400, seed).follows(COMPUTES), Follows::No);
        }

        #[test]
        fn an_answer_is_never_the_wrong_one(seed in any::<u64>(), octaves in 0i32..4, noise in 0i32..5, samples in 1u32..500) {
            prop_assert_ne!(response(100, octaves, noise, samples, seed).follows(COMPUTES), Follows::No);
            prop_assert_ne!(response(0, octaves, noise, samples, seed).follows(COMPUTES), Follows::Yes);
        }
    }

    #[test]
    fn noise_is_not_taken_for_an_answer() {
        let answers = |slope| (0..300).map(move |seed| response(slope, 1, 4, 80, seed).follows(COMPUTES));
        let wrong = answers(100).filter(|answer| *answer == Follows::No).count()
            + answers(0).filter(|answer| *answer == Follows::Yes).count();
        assert_eq!(wrong, 0);
    }

    #[test]
    fn times_that_fall_while_concurrency_grows_are_not_taken_for_sleep() {
        assert_eq!(response(-100, 3, 1, 400, 1).follows(COMPUTES), Follows::Unclear);
    }

    #[test]
    fn concurrency_that_never_changes_shows_nothing() {
        assert_eq!(response(100, 0, 1, 10_000, 1).follows(COMPUTES), Follows::Unclear);
    }
}

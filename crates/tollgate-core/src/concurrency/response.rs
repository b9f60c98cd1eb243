//! Whether a route's times follow the crowd.
//!
//! A request that computes takes twice as long when twice as many compute. One that waits for a database does not care. Which of the two a
//! route's requests are shows in the slope of one logarithm over the other: about one, or about nothing. It is decided only when the
//! crowd has varied enough for the slope to be certainly on one side of a half.

use super::{OCTAVE, SURPRISE_MAX};

/// How many requests of a route are remembered, and how many are needed for an answer.
const MEMORY: i64 = 256;
const SAMPLES_MIN: i64 = 64;
/// Times differ by at least this much whatever the crowd, and the crowd must have varied by this much: an eighth of an octave, squared.
const VARIANCE_MIN: i128 = (OCTAVE as i128 / 8).pow(2);
/// So many standard errors are certain.
const CERTAIN: i128 = 3;

/// A regression in which the old fades.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Response {
    samples: i64,
    crowd: i64,
    took: i64,
    crowd_squared: i64,
    took_squared: i64,
    product: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Yes,
    No,
    Unclear,
}

impl Response {
    pub(super) fn add(&mut self, crowd: i32, took: i32) {
        self.samples = (self.samples + 1).min(MEMORY);
        let (crowd, took) = (i64::from(crowd) - self.crowd, i64::from(took) - self.took);
        self.crowd += crowd / self.samples;
        self.took += took / self.samples;
        if self.samples == 1 {
            return;
        }
        let took = took.clamp(-i64::from(SURPRISE_MAX), i64::from(SURPRISE_MAX));
        self.crowd_squared += crowd * crowd - self.crowd_squared / MEMORY;
        self.took_squared += took * took - self.took_squared / MEMORY;
        self.product += crowd * took - self.product / MEMORY;
    }

    pub(super) fn follows(&self) -> Follows {
        let samples = i128::from(self.samples);
        let crowd = i128::from(self.crowd_squared);
        let took = i128::from(self.took_squared).max(samples * VARIANCE_MIN);
        // Twice the slope, less one, times the crowd's variance; its standard error is 2 * sqrt(took * crowd / samples).
        let off = 2 * i128::from(self.product) - crowd;
        if self.samples < SAMPLES_MIN
            || crowd < samples * VARIANCE_MIN
            || off * off * samples < 4 * CERTAIN * CERTAIN * took * crowd
        {
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

    /// A route whose times follow the crowd with this slope, in percent, and differ by up to so many octaves for other reasons.
    fn response(slope_percent: i32, crowd_octaves: i32, noise_octaves: i32, samples: u32, seed: u64) -> Response {
        let mut response = Response::default();
        let mut state = seed | 1;
        let mut random = |below: i32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i32 % below.max(1)
        };
        for _ in 0..samples {
            let crowd = random(crowd_octaves * OCTAVE);
            response.add(crowd, 24 * OCTAVE + crowd * slope_percent / 100 + random(noise_octaves * OCTAVE));
        }
        response
    }

    proptest! {
        #[test]
        fn what_computes_follows_and_what_sleeps_does_not(seed in any::<u64>()) {
            prop_assert_eq!(response(100, 3, 1, 400, seed).follows(), Follows::Yes);
            prop_assert_eq!(response(0, 3, 1, 400, seed).follows(), Follows::No);
        }

        #[test]
        fn an_answer_is_never_the_wrong_one(seed in any::<u64>(), octaves in 0i32..4, noise in 0i32..5, samples in 1u32..500) {
            prop_assert_ne!(response(100, octaves, noise, samples, seed).follows(), Follows::No);
            prop_assert_ne!(response(0, octaves, noise, samples, seed).follows(), Follows::Yes);
        }
    }

    #[test]
    fn noise_is_not_taken_for_an_answer() {
        let answers = |slope| (0..300).map(move |seed| response(slope, 1, 4, 80, seed).follows());
        let wrong = answers(100).filter(|answer| *answer == Follows::No).count()
            + answers(0).filter(|answer| *answer == Follows::Yes).count();
        assert_eq!(wrong, 0);
    }

    #[test]
    fn a_crowd_that_never_changes_tells_nothing() {
        assert_eq!(response(100, 0, 1, 10_000, 1).follows(), Follows::Unclear);
    }
}

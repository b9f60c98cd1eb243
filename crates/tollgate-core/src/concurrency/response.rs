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

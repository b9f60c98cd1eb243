//! Finds the number of requests that a backend serves at once, for the in-flight limit (`limit.rs`). Beyond it,
//! requests share the backend and slow each other down: the curve of their times over the number in flight has a knee
//! there.
//!
//! The obvious way compares the time that requests take now with the shortest ever seen. But requests differ by route
//! more than by load, and the shortest ever seen is a cache hit. This regression asks instead which number explains the
//! times best. If the backend serves `k` at once, a request among `n` takes as long as alone up to `k`, and `n/k` times
//! as long beyond. With the true `k` taken out of the measured times, the times of one route hardly differ. For each of
//! a handful of candidates the regression keeps the variance that the candidate leaves unexplained. Only differences
//! within a route count, so the mix of routes does not matter.

use super::log2::{OCTAVE, exp2, log2};
use crate::time::Span;
use crate::virtual_clock::ALONE;

/// The candidates. The last one stands for "all at once, however many".
const STEPS: [u32; COUNT] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024];
/// Their logarithms.
const STEPS_LOG2: [i32; COUNT] = {
    let (mut logs, mut index) = ([0; COUNT], 0);
    while index < COUNT {
        logs[index] = log2(STEPS[index] as u64 * ALONE);
        index += 1;
    }
    logs
};
const COUNT: usize = 19;
/// The index of the candidate that requests are served one after another.
const SERIAL: usize = COUNT;
/// How many requests the regression remembers.
const MEMORY: u64 = 256;
/// How many requests of a route it remembers.
const ROUTE_MEMORY: i32 = 64;
/// The number of unexplained requests in a row after which the cost of the route is taken to have changed. A request is
/// unexplained if it takes more than four times as long as every candidate expects, or less than a quarter.
const UNEXPLAINED_MAX: u8 = 3;
/// Fewer requests than this show nothing.
pub(super) const SAMPLES_MIN: u64 = 12;
/// If this many requests show nothing, the number in flight does not vary enough.
pub(super) const MANY: u64 = 32;
/// A candidate is clearly better than another if it leaves less variance unexplained, by at least this many times the
/// usual variance of one request.
const CLEARLY: u64 = 30;
/// One request leaves at least this much unexplained, however regular the backend: a sixteenth of an octave, squared.
const NOISE_MIN: u64 = (OCTAVE as u64 / 16).pow(2);

/// The time that a route's requests take alone, by each candidate, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usual {
    alone: [i32; COUNT + 1],
    samples: i32,
    /// How many requests in a row no candidate has explained.
    unexplained: u8,
}

/// The weighed deviation ([`weigh`]) of one request from its route's usual time, by each candidate.
pub(super) type Deviations = [u64; COUNT + 1];

impl Usual {
    /// Removes each candidate's slowdown from the measured time, and compares the rest with the route's usual time.
    /// The memory of a route whose cost has changed is dropped.
    pub(super) fn compare(&mut self, took: i32, concurrency: i32, turn: i32) -> Deviations {
        if self.unexplained >= UNEXPLAINED_MAX {
            *self = Self::default();
        }
        let is_first = self.samples == 0;
        self.samples = (self.samples + 1).min(ROUTE_MEMORY);
        // A shift instead of a division lets the compiler make vector code of the loop.
        let part = self.samples.ilog2();
        let mut alone_now = [turn; COUNT + 1];
        for (alone, step) in alone_now.iter_mut().zip(STEPS_LOG2) {
            *alone = took - (concurrency - step).max(0);
        }
        let mut deviations = [0; COUNT + 1];
        for ((alone, weighed), now) in self.alone.iter_mut().zip(&mut deviations).zip(alone_now) {
            let deviation = now - *alone;
            *alone += if is_first { deviation } else { deviation >> part };
            *weighed = if is_first { 0 } else { weigh(deviation.unsigned_abs().into()) };
        }
        let is_explained = deviations[..COUNT].iter().any(|deviation| *deviation <= weigh(2 * OCTAVE as u64));
        self.unexplained = if is_explained { 0 } else { self.unexplained + 1 };
        deviations
    }

    /// The usual time of a request of this route from the end of the one before it, if that is known.
    pub(super) fn turn(&self) -> Option<Span> {
        (self.samples > 0).then(|| Span::from_nanos(exp2(self.alone[SERIAL])))
    }
}

/// Squares a small deviation. A large one, which every route has now and then, counts linearly.
fn weigh(deviation: u64) -> u64 {
    let large = u64::from(OCTAVE.unsigned_abs());
    if deviation <= large { deviation * deviation } else { large * (2 * deviation - large) }
}

/// The result of the regression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The backend serves this number at once. Of the candidates that are not clearly worse than the best one, it is
    /// the nearest to the number in force.
    Full(u32),
    /// The backend has served all requests at once so far, however many there were.
    Roomy,
    /// The number at once has not varied enough to tell.
    Unclear,
}

/// The regression over all requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Knee {
    /// Variance left unexplained by each candidate, with old samples fading.
    unexplained: Deviations,
    /// How many requests have been recorded, up to what the regression remembers.
    pub(super) samples: u64,
}

impl Knee {
    pub(super) fn record(&mut self, deviations: &Deviations) {
        for (sum, deviation) in self.unexplained.iter_mut().zip(deviations) {
            *sum = *sum - *sum / MEMORY + deviation;
        }
        self.samples = (self.samples + 1).min(MEMORY);
    }

    pub(super) fn finding(&self, in_force: u32) -> Finding {
        let least = self.least();
        let [follows, .., flat, _] = self.unexplained;
        let clear = self.noise() * CLEARLY;
        if flat - least > clear {
            // The largest step that is not above the number in force.
            let current = STEPS.iter().rposition(|&step| step <= in_force).unwrap_or(0);
            let is_good = |index: &usize| self.unexplained[*index] - least <= clear;
            let nearest = (0..COUNT).filter(is_good).min_by_key(|index| index.abs_diff(current)).unwrap_or(current);
            Finding::Full(if nearest == current { in_force } else { STEPS[nearest] })
        } else if follows.saturating_sub(flat) > clear && self.samples >= SAMPLES_MIN {
            Finding::Roomy
        } else {
            Finding::Unclear
        }
    }

    /// Whether requests are served one after another. If that was not known, it has to explain the times clearly better
    /// than any number; if it was known, it has to be clearly worse to be wrong.
    pub(super) fn is_serial(&self, was: bool) -> bool {
        let (serial, least) = (self.unexplained[SERIAL], self.least());
        let (better, worse) = if was { (least, serial) } else { (serial, least) };
        let is_clear = worse > better + (better / self.samples.max(1)).max(NOISE_MIN) * CLEARLY;
        if was { !is_clear } else { is_clear && self.samples >= SAMPLES_MIN }
    }

    /// The variance that the best number leaves unexplained.
    fn least(&self) -> u64 {
        self.unexplained[..COUNT].iter().copied().min().unwrap_or(0)
    }

    /// The variance of one request's time around its route's usual time.
    fn noise(&self) -> u64 {
        let least = self.least();
        (least / self.samples.max(1)).max(NOISE_MIN)
    }

    /// How many requests it takes to distinguish a number from half of it: more where times vary.
    pub(super) fn samples_needed(&self) -> u32 {
        let octave = (OCTAVE as u64).pow(2);
        4 + (32 * self.noise() / octave).min(60) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 20 ms that arrive while a request of 300 ms is served, one at a time. The result for each.
    fn finds_serial(is_serial: bool, was: bool) -> bool {
        let (mut knee, mut routes) = (Knee::default(), [Usual::default(); 2]);
        for behind in (0..20).map(|number: u64| 10 + number * 97 % 230) {
            // Wall time and turn: behind the long request, or on the same core.
            let (page, long) =
                if is_serial { ((320 - behind, 20), (300, 300)) } else { ((40, 40), (320, 320 - behind - 40)) };
            for (route, (wall, turn)) in routes.iter_mut().zip([page, long]) {
                let concurrency = if turn == long.1 { ALONE } else { 2 * ALONE };
                let [wall, turn] = [wall, turn].map(|millis| log2(millis * 1_000_000));
                knee.record(&route.compare(wall, log2(concurrency), turn));
            }
        }
        knee.is_serial(was)
    }

    #[test]
    fn times_show_whether_a_page_waits_for_the_whole_of_a_long_request() {
        for was in [false, true] {
            assert!(finds_serial(true, was));
            assert!(!finds_serial(false, was));
        }
    }
}

//! From how many at once on more only wait for each other.
//!
//! The obvious way is to compare the time that requests take now with the shortest ever seen. But requests differ by route more than by
//! load, and the shortest ever seen is a cache hit. So this asks another question: which number explains the times best? If the
//! backend serves `k` at once, a request among `n` takes as long as alone up to `k`, and `n/k` times as long beyond. With the true `k`
//! taken out of the measured times, those of a route hardly differ any more. A handful of candidates is kept, and for each
//! how much the times of a route still differ. Only differences within a route count, so it does not matter which routes are
//! busy when.
//!
//! While somebody waits who would be let in, a larger and a smaller number are tried for a second now and then, unless the ups and downs
//! of traffic have shown them already.

use super::{OCTAVE, log2};
use crate::time::{Moment, Span};
use crate::virtual_clock::Load;

/// The candidates, in 256ths of a request that computes: from a 32nd, which is one that sleeps, to more than anybody sends. The last
/// stands for "served at once, however many".
const STEPS: [u64; COUNT] = [
    4,
    8,
    16,
    32,
    64,
    128,
    ONE,
    2 * ONE,
    3 * ONE,
    4 * ONE,
    6 * ONE,
    8 * ONE,
    12 * ONE,
    16 * ONE,
    24 * ONE,
    32 * ONE,
    48 * ONE,
    64 * ONE,
    96 * ONE,
    128 * ONE,
    192 * ONE,
    256 * ONE,
    384 * ONE,
    512 * ONE,
    1024 * ONE,
];
const ONE: u64 = Load::ONE.as_256ths();
const COUNT: usize = 25;
const FLAT: usize = COUNT - 1;
/// How many requests are remembered.
const MEMORY: u64 = 256;
/// How many of a route are.
const ROUTE_MEMORY: i32 = 64;
/// A candidate is clearly better if it explains this many times what one request usually leaves unexplained.
const CLEARLY: u64 = 30;
/// A number has been tried when so many requests went through with it,
const TRIED: u32 = 8;
/// and it was in force for so long.
const TRIAL: Span = Span::from_secs(1);
/// A number that is not made use of for so long is not tried any more.
const TRIAL_MAX: Span = Span::from_secs(4);
/// For so long it is not tried again.
const TRIAL_EVERY: Span = Span::from_secs(30);
/// What has not been seen for so long says nothing about now.
pub(super) const STALE: Span = Span::from_secs(10);

/// How long a route's requests usually take alone, by each candidate, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usual {
    alone: [i32; COUNT],
    samples: i32,
}

/// By how much a request was off the usual, by each candidate, squared.
pub(super) type Surprises = [u64; COUNT];

impl Usual {
    /// Takes each candidate's slowdown out of what was measured.
    pub(super) fn compare(&mut self, took: i32, crowd: i32) -> Surprises {
        let first = self.samples == 0;
        self.samples = (self.samples + 1).min(ROUTE_MEMORY);
        let mut surprises = [0; COUNT];
        for (index, step) in STEPS.iter().enumerate() {
            let slowdown = (crowd - log2(*step)).max(0);
            let surprise = took - slowdown - self.alone[index];
            self.alone[index] += surprise / self.samples;
            if !first {
                surprises[index] = weigh(surprise.unsigned_abs().into());
            }
        }
        surprises
    }
}

/// A small surprise counts squared, a large one, which any route has now and then, only in proportion.
fn weigh(surprise: u64) -> u64 {
    let large = u64::from(OCTAVE.unsigned_abs());
    if surprise <= large { surprise * surprise } else { large * (2 * surprise - large) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// More than this many at once only wait for each other.
    Full(usize),
    /// As many as there were at once were served at once.
    Roomy,
    /// There were always about as many at once.
    Unclear,
}

/// The number that explains the times best.
#[derive(Clone, Debug)]
pub(super) struct Knee {
    /// How much the times of a route still differ, for each candidate, with the old fading.
    unexplained: Surprises,
    remembered: u64,
    guess: usize,
    max: usize,
    /// The best number, as far as is known.
    current: usize,
    /// One that is being tried, and since when.
    trial: Option<(usize, Moment)>,
    /// Requests that went through with at least the number in force.
    tried: u32,
    seen: u32,
    /// Requests in a row at the end of which somebody waited.
    pressed: u32,
    /// When distinctly more, distinctly fewer, and at least half the current number were last at the backend.
    more_at: Option<Moment>,
    fewer_at: Option<Moment>,
    used_at: Moment,
}

impl Knee {
    pub(super) fn new(guess: Load, max: Load) -> Self {
        let guess = step_of(guess.min(max));
        Self {
            unexplained: [0; COUNT],
            remembered: 0,
            guess,
            max: step_of(max),
            current: guess,
            trial: None,
            tried: 0,
            seen: 0,
            pressed: 0,
            more_at: None,
            fewer_at: None,
            used_at: Moment::ZERO,
        }
    }

    /// The number in force.
    pub(super) fn at_once(&self) -> Load {
        Load::from_256ths(STEPS[self.in_force()])
    }

    /// The best number, as far as is known.
    pub(super) fn found(&self) -> Load {
        Load::from_256ths(STEPS[self.current])
    }

    /// Forgets what was found.
    pub(super) fn restart(&mut self) {
        let load = |index: usize| Load::from_256ths(STEPS[index]);
        *self = Self { used_at: self.used_at, ..Self::new(load(self.guess), load(self.max)) };
    }

    /// Learns from a request. `pressed` says that others wait who would go if more were let in.
    pub(super) fn record(&mut self, surprises: &Surprises, crowd: i32, pressed: bool, now: Moment) {
        for (sum, surprise) in self.unexplained.iter_mut().zip(surprises) {
            *sum = *sum - *sum / MEMORY + surprise;
        }
        self.remembered = (self.remembered + 1).min(MEMORY);

        let step = |index: usize| log2(STEPS[index]);
        let (current, in_force) = (step(self.current), step(self.in_force()));
        self.seen = self.seen.saturating_add(1);
        self.tried += u32::from(crowd >= in_force - OCTAVE / 4);
        if crowd > current + OCTAVE / 2 {
            self.more_at = Some(now);
        }
        if crowd < current - OCTAVE / 2 {
            self.fewer_at = Some(now);
        }
        if crowd > current - OCTAVE {
            self.used_at = now;
        } else if now.since(self.used_at) > STALE && self.current > self.guess {
            // Nobody knows any more whether so many are still served at once.
            self.current -= 1;
            self.used_at = now;
        }
        // Somebody waits now and then in the best of times.
        self.pressed = if pressed { self.pressed.saturating_add(1) } else { 0 };
        self.end_unused_trial(now);
        self.steer(self.pressed >= TRIED, now);
    }

    /// In calm a number may never be reached: whoever comes then must not find it in force.
    fn end_unused_trial(&mut self, now: Moment) {
        let Some((trial, since)) = self.trial else { return };
        if now.since(since) < TRIAL_MAX || self.tried >= TRIED {
            return;
        }
        match trial > self.current {
            true => self.more_at = Some(now),
            false => self.fewer_at = Some(now),
        }
        self.trial = None;
        (self.seen, self.tried) = (0, 0);
    }

    fn in_force(&self) -> usize {
        self.trial.map_or(self.current, |(trial, _)| trial)
    }

    /// The candidate that explains most; of equally good ones the nearest to the current.
    fn finding(&self) -> Finding {
        let least = self.unexplained.iter().copied().min().unwrap_or(0);
        let (follows, flat) = (self.unexplained[0], self.unexplained[FLAT]);
        let clear = least / self.remembered.max(1) * CLEARLY;
        if flat - least > clear {
            let as_good = |index: &usize| self.unexplained[*index] <= least + (flat - least) / 32;
            let nearest = (0..COUNT).filter(as_good).min_by_key(|index| index.abs_diff(self.current));
            Finding::Full(nearest.unwrap_or(self.current))
        } else if follows.saturating_sub(flat) > clear {
            Finding::Roomy
        } else {
            Finding::Unclear
        }
    }

    fn steer(&mut self, pressed: bool, now: Moment) {
        if self.seen < TRIED || self.trial.is_some_and(|(_, since)| now.since(since) < TRIAL) {
            return;
        }
        let (was, was_in_force) = (self.current, self.in_force());
        let finding = self.finding();
        if self.tried < TRIED && !matches!(finding, Finding::Full(best) if best < was) {
            return;
        }
        match finding {
            // A step at a time: what lies further off has not been seen.
            Finding::Full(best) => self.current = best.clamp(was.saturating_sub(1), (was + 1).min(self.max)),
            Finding::Roomy if pressed => self.current = (was + 2).min(self.max),
            Finding::Roomy | Finding::Unclear => {}
        }
        let due = |at: Option<Moment>, every: Span| pressed && at.is_none_or(|at| now.since(at) > every);
        // Fewer than the cores can do is unlikely, and costly to try.
        let fewer_every = if self.current > self.guess { TRIAL_EVERY } else { TRIAL_EVERY.times(8) };
        match self.trial.take() {
            Some((trial, _)) if trial > was => self.more_at = Some(now),
            // What was worth a step down may be worth another.
            Some(_) if self.current < was => self.fewer_at = None,
            Some(_) => self.fewer_at = Some(now),
            None if due(self.more_at, TRIAL_EVERY) => self.trial = Some(((self.current + 2).min(self.max), now)),
            None if due(self.fewer_at, fewer_every) && self.current > 0 => {
                self.trial = Some((self.current.saturating_sub(2), now))
            }
            None => {}
        }
        if self.in_force() != was_in_force {
            (self.seen, self.tried) = (0, 0);
        }
    }
}

/// The largest step that is not above `load`.
fn step_of(load: Load) -> usize {
    STEPS.iter().rposition(|&step| step <= load.as_256ths()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend that serves `serves` at once, always has more waiting than may come in, and now and then a light visitor beside.
    struct Backend {
        knee: Knee,
        usual: [Usual; 2],
        serves: u64,
        now: Moment,
        random: u64,
    }

    impl Backend {
        fn new(guess: u32, serves: u32) -> Self {
            let knee = Knee::new(Load::of(guess), Load::of(512));
            Self { knee, usual: [Usual::default(); 2], serves: u64::from(serves), now: Moment::ZERO, random: 1 }
        }

        fn random(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % below
        }

        /// Requests of two routes, one four times as dear as the other, each between half and one and a half times its usual cost.
        fn run(&mut self, requests: u32, visitors: u64, pressed: bool) {
            for _ in 0..requests {
                let beside = self.random(visitors + 1);
                let crowd = self.knee.at_once().as_256ths().max(ONE) + beside * ONE;
                let route = self.random(2) as usize;
                let alone = (1 + 3 * route as u64) * 20_000_000 * (50 + self.random(100)) / 100;
                let wall = alone * (crowd.max(self.serves * ONE)) / (self.serves * ONE);
                self.now = self.now + Span::from_nanos(wall * ONE / crowd);
                let surprises = self.usual[route].compare(log2(wall), log2(crowd));
                self.knee.record(&surprises, log2(crowd), pressed, self.now);
            }
        }

        /// The number that was in force for most of the next requests.
        fn settled(&mut self) -> u64 {
            let mut seen = [0; COUNT];
            for _ in 0..400 {
                self.run(1, 2, true);
                seen[self.knee.in_force()] += 1;
            }
            let most = (0..COUNT).max_by_key(|&index| seen[index]).unwrap_or(0);
            STEPS[most] / ONE
        }
    }

    #[test]
    fn the_number_that_a_backend_serves_at_once_is_found() {
        for serves in [1, 2, 4, 16, 64] {
            let mut backend = Backend::new(2, serves);
            backend.run(4000, 2, true);
            let found = backend.settled();
            let (least, most) = (u64::from(serves) * 3 / 4, u64::from(serves) * 3 / 2);
            assert!((least..=most).contains(&found), "{found} instead of {serves}");
        }
    }

    #[test]
    fn a_guess_that_is_far_too_high_is_corrected() {
        let mut backend = Backend::new(16, 2);
        backend.run(8000, 2, true);
        assert!(backend.settled() <= 3);
    }

    #[test]
    fn a_trial_that_nobody_makes_use_of_ends() {
        let mut backend = Backend::new(1, 1);
        backend.run(40, 0, true);
        while backend.knee.trial.is_none_or(|(trial, _)| trial < backend.knee.current) {
            backend.run(1, 0, true);
            assert!(backend.now < Moment::from_millis(600_000), "a larger number is tried at some time");
        }
        let surprises = backend.usual[0].compare(log2(20_000_000), log2(ONE));
        for _ in 0..20 {
            backend.now = backend.now + Span::from_millis(300);
            backend.knee.record(&surprises, log2(ONE), false, backend.now);
        }
        assert_eq!(backend.knee.at_once(), Load::ONE);
    }

    #[test]
    fn that_somebody_waits_now_and_then_is_no_reason_to_try_more() {
        let mut backend = Backend::new(1, 1);
        for round in 0..2000u64 {
            backend.run(1, 0, round % 4 != 0);
            // Not even for a moment: a trial that is over leaves nothing behind.
            assert_eq!((backend.knee.trial, backend.knee.at_once()), (None, Load::ONE), "after {round}");
        }
    }

    #[test]
    fn nothing_is_changed_while_nobody_waits() {
        let mut backend = Backend::new(4, 100);
        backend.run(2000, 2, false);
        assert_eq!(backend.knee.at_once(), Load::of(4));
    }

    #[test]
    fn a_backend_that_is_three_times_slower_serves_as_many_at_once() {
        let mut backend = Backend::new(2, 4);
        backend.run(4000, 2, true);
        for usual in &mut backend.usual {
            // What takes longer now was shorter before.
            usual.alone.iter_mut().for_each(|alone| *alone -= log2(3 << 20) - log2(1 << 20));
        }
        backend.run(1000, 2, true);
        let found = backend.settled();
        assert!((3..=6).contains(&found), "{found}");
    }

    #[test]
    fn a_large_number_that_is_not_used_any_more_is_forgotten() {
        let mut backend = Backend::new(1, 200);
        backend.run(4000, 2, true);
        assert!(backend.knee.at_once() > Load::of(30));
        for _ in 0..100 {
            backend.now = backend.now + STALE;
            let surprises = backend.usual[0].compare(log2(20_000_000), log2(ONE));
            backend.knee.record(&surprises, log2(ONE), false, backend.now);
        }
        assert_eq!(backend.knee.at_once(), Load::ONE);
    }
}

//! Seeded random numbers (SplitMix64), implemented here so that a seed gives the same storm on every machine
//! and with every library version.

use std::time::Duration;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.roll()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("a 64-bit product's high half fits")
    }

    /// The time to the next arrival of a Poisson process with this rate.
    pub fn pause(&mut self, per_second: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.unit()).ln() / per_second)
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A log-uniform duration between `low` and `high`.
    pub fn log_uniform(&mut self, low: Duration, high: Duration) -> Duration {
        low.mul_f64((high.as_secs_f64() / low.as_secs_f64()).powf(self.unit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        let mut dice = Dice::new(1_234_567);
        assert_eq!([dice.roll(), dice.roll()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn pauses_average_to_the_rate_they_were_asked_for() {
        let mut dice = Dice::new(7);
        let total: Duration = (0..100_000).map(|_| dice.pause(5.0)).sum();
        let mean_ms = total.as_secs_f64() / 100_000.0 * 1e3;
        assert!((198.0..202.0).contains(&mean_ms), "{mean_ms}");
    }

    #[test]
    fn a_log_uniform_duration_is_in_both_halves_equally_often() {
        let mut dice = Dice::new(5);
        let (low, high) = (Duration::from_millis(10), Duration::from_secs(1));
        let drawn: Vec<Duration> = (0..10_000).map(|_| dice.log_uniform(low, high)).collect();
        assert!(drawn.iter().all(|time| (low..=high).contains(time)));
        let below = drawn.iter().filter(|time| **time < Duration::from_millis(100)).count();
        assert!((4_800..5_200).contains(&below), "{below}");
    }

    #[test]
    fn a_number_stays_below_its_bound() {
        let mut dice = Dice::new(3);
        assert!((0..10_000).all(|_| dice.below(40) < 40));
    }
}

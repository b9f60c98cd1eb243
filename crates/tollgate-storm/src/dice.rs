//! Chance from a seed: SplitMix64, written out so that a seed means the same storm on every machine and in every year.

use std::time::Duration;

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.roll()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("a 64-bit product's high half fits")
    }

    /// The pause before the next arrival of a Poisson stream of `per_second`.
    pub(crate) fn pause(&mut self, per_second: f64) -> Duration {
        let unit = (self.roll() >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(-(1.0 - unit).ln() / per_second)
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
    fn a_number_stays_below_its_bound() {
        let mut dice = Dice::new(3);
        assert!((0..10_000).all(|_| dice.below(40) < 40));
    }
}

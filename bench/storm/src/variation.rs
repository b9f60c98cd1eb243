//! Storms with parameters drawn from a seed. A gate that is tuned to the fixed scenarios fails here.

use crate::scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};
use tollgate_storm::{
    dice::Dice,
    page::{Cost, Costs},
};

/// Workers that a site may have.
const WORKERS: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Enough workers keep the core busy although each of them sleeps for a share of the time.
const BUSY_WORKERS_MIN: f64 = 4.0;
/// Keeps the numbers of a variation apart from those of the plan, which the same seed draws.
const SALT: u64 = 0x5eed_0f57_0000_0001;

/// The parameters of one storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Variation {
    /// People alone before the crawler: 0 to 40 s.
    pub(crate) calm: Duration,
    /// Time that the gate is idle before the first request of all: 0 to 5 s.
    pub(crate) idle: Duration,
    /// Connections of the crawler: 16 to 128.
    pub(crate) crawler_connections: u8,
    /// Cost of an archive page, which the crawler requests (50 ms to 1 s), of an article (5 to 50 ms), and of an
    /// asset. A share of each is sleep: 0 to 80 %.
    pub(crate) costs: Costs,
    /// Requests that the site serves at once.
    pub(crate) workers: usize,
}

impl Variation {
    /// The variation of `seed`.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ SALT);
        let millis = Duration::from_millis;
        let calm = millis(dice.below(40_001));
        let idle = millis(dice.below(5_001));
        let crawler_connections = u8::try_from(16 + dice.below(113)).expect("at most 128 connections");
        let archive = dice.log_uniform(millis(50), millis(1000));
        let article = dice.log_uniform(millis(5), millis(50));
        // Half of the sites do not sleep at all, as the law for the use of the core assumes.
        let sleep_share = (dice.unit() * 1.6 - 0.8).max(0.0);
        let fewest = dice.below(WORKERS.len() as u64) as usize;
        let is_busy = |&&workers: &&usize| workers as f64 * (1.0 - sleep_share) >= BUSY_WORKERS_MIN;
        let enough = if sleep_share > 0.0 { WORKERS[fewest..].iter().find(is_busy) } else { None };
        let workers = *enough.unwrap_or(&WORKERS[fewest]);
        let split = |total: Duration| Cost { cpu: total.mul_f64(1.0 - sleep_share), sleep: total.mul_f64(sleep_share) };
        let asset = split(Costs::default().asset.cpu);
        let costs = Costs { article: split(article), archive: split(archive), asset };
        Self { calm, idle, crawler_connections, costs, workers }
    }
}

/// The crawler's networks in the storm of `seed`. Consecutive seeds take turns, so that few seeds cover all three.
pub(crate) const fn scenario_of_seed(seed: u64) -> Scenario {
    match seed % 3 {
        0 => Scenario::S1,
        1 => Scenario::S2,
        _ => Scenario::S3,
    }
}

impl fmt::Display for Variation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Costs { article, archive, .. } = self.costs;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            out,
            "{:.1} s idle, {:.1} s calm, {} crawler connections, archive {:.0} ms CPU + {:.0} ms sleep, \
             article {:.1} + {:.1} ms, {} workers",
            self.idle.as_secs_f64(),
            self.calm.as_secs_f64(),
            self.crawler_connections,
            ms(archive.cpu),
            ms(archive.sleep),
            ms(article.cpu),
            ms(article.sleep),
            self.workers,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variations_stay_within_their_ranges_and_reach_both_ends() {
        let variations: Vec<Variation> = (0..2000).map(Variation::of_seed).collect();
        let ms = Duration::from_millis;
        for variation in &variations {
            assert!(variation.calm <= ms(40_000) && variation.idle <= ms(5_000), "{variation}");
            assert!((16..=128).contains(&variation.crawler_connections), "{variation}");
            assert!((ms(49)..=ms(1000)).contains(&variation.costs.archive.total()), "{variation}");
            assert!((ms(4)..=ms(50)).contains(&variation.costs.article.total()), "{variation}");
        }
        assert!(variations.iter().any(|variation| variation.calm < ms(400)));
        assert!(variations.iter().any(|variation| variation.calm > ms(39_600)));
        assert!(variations.iter().any(|variation| variation.costs.archive.total() > ms(950)));
        let never_sleep = variations.iter().filter(|variation| variation.costs.archive.sleep.is_zero()).count();
        assert!((900..1100).contains(&never_sleep), "{never_sleep}");
    }

    #[test]
    fn a_site_that_sleeps_has_enough_workers_for_its_core() {
        for variation in (0..2000).map(Variation::of_seed) {
            let Cost { cpu, sleep } = variation.costs.archive;
            let share = cpu.as_secs_f64() / (cpu + sleep).as_secs_f64();
            assert!(sleep.is_zero() || variation.workers as f64 * share >= BUSY_WORKERS_MIN * 0.99, "{variation}");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_variation() {
        assert_eq!(Variation::of_seed(7), Variation::of_seed(7));
        assert_ne!(Variation::of_seed(7), Variation::of_seed(8));
    }
}

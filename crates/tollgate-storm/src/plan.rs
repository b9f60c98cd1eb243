//! The plan of a storm, computed before it starts.
//!
//! People do not slow down because a site is slow, so their visits are an open loop: the seed fixes the
//! schedule, and the duration of a visit counts from its planned start, even if it starts late. A closed loop
//! would send nothing while the site hangs, and miss the longest durations. Each connection of the crawler is a
//! closed loop: it sends the next request one round trip after the response.

use crate::{
    crowd::{self, CRAWLER_CONNECTIONS, Crowd, Origin},
    dice::Dice,
    page::{ARCHIVE_ID_MIN, Kind},
};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};

/// Page views per second of all 40 humans together: each views a page every 8 seconds.
const HUMAN_VIEWS_PER_SECOND: f64 = 5.0;
/// Page views per second of the office: 30 people, as active as the humans.
const OFFICE_VIEWS_PER_SECOND: f64 = 3.75;
/// One visit in this many is to an archive page: people rarely request the pages that the crawler requests.
const ARCHIVE_ONE_IN: u64 = 50;
/// The default of [`Plan::crawler_round_trip`], which the program `tollgate-storm` has too.
const CRAWLER_ROUND_TRIP: Duration = Duration::from_millis(20);

/// The duration of each phase of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// People alone, before the crawler.
    pub calm: Duration,
    /// People and the crawler.
    pub storm: Duration,
    /// People alone, after it.
    pub recovery: Duration,
}

impl Phases {
    /// The time at which the crawler arrives.
    pub const fn storm_at(self) -> Duration {
        self.calm
    }

    /// The time at which the crawler leaves.
    pub fn recovery_at(self) -> Duration {
        self.calm + self.storm
    }

    /// The end of the plan. All visits start before it.
    pub fn end_at(self) -> Duration {
        self.calm + self.storm + self.recovery
    }
}

/// One page view with its assets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The planned start, since the start of the plan.
    pub at: Duration,
    /// Human or office.
    pub crowd: Crowd,
    /// The client's address.
    pub source: Ipv4Addr,
    /// An article, or sometimes an archive page.
    pub kind: Kind,
    /// The number of the page.
    pub id: u64,
}

/// The visits of people, and the parameters of the crawler.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The phases.
    pub phases: Phases,
    /// People's visits, in order of time.
    pub visits: Vec<Visit>,
    /// The crawler's networks; `None` without a crawler.
    pub origin: Option<Origin>,
    /// Whether the paths of archive pages look like those of articles: the `alike` of [`Kind::path`].
    pub alike: bool,
    /// The simulated network round trip before each request of the crawler. Loopback has none, and a crawler
    /// that is refused immediately would only measure the refusal rate of this machine.
    pub crawler_round_trip: Duration,
    /// The number of the crawler's connections.
    pub crawler_connections: u16,
}

impl Plan {
    /// The plan of `seed`.
    pub fn new(seed: u64, phases: Phases, origin: impl Into<Option<Origin>>) -> Self {
        let mut humans = Dice::new(seed);
        let mut office = Dice::new(!seed);
        let mut visits = visits(&mut humans, HUMAN_VIEWS_PER_SECOND, phases.end_at(), Crowd::Human);
        visits.extend(self::visits(&mut office, OFFICE_VIEWS_PER_SECOND, phases.end_at(), Crowd::Office));
        visits.sort_by_key(|visit| visit.at);
        Self {
            phases,
            visits,
            origin: origin.into(),
            alike: false,
            crawler_round_trip: CRAWLER_ROUND_TRIP,
            crawler_connections: CRAWLER_CONNECTIONS,
        }
    }
}

fn visits(dice: &mut Dice, per_second: f64, end_at: Duration, crowd: Crowd) -> Vec<Visit> {
    let mut at = Duration::ZERO;
    let mut visits = Vec::new();
    loop {
        at += dice.pause(per_second);
        if at >= end_at {
            return visits;
        }
        let kind = if dice.below(ARCHIVE_ONE_IN) == 0 { Kind::Archive } else { Kind::Article };
        // Also drawn for the office, which does not use it: the numbers that follow depend on it.
        let index = u8::try_from(dice.below(u64::from(crowd::HUMANS))).expect("HUMANS is a u8");
        let source = if crowd == Crowd::Office { crowd::OFFICE } else { crowd::human(index) };
        visits.push(Visit { at, crowd, source, kind, id: dice.below(ARCHIVE_ID_MIN) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: Phases =
        Phases { calm: Duration::from_secs(200), storm: Duration::from_secs(600), recovery: Duration::from_secs(300) };

    #[test]
    fn the_same_seed_is_the_same_storm_and_another_is_another() {
        let visits = |seed, origin| Plan::new(seed, PHASES, origin).visits;
        assert_eq!(visits(1, Origin::Address), visits(1, Origin::Everywhere));
        assert_ne!(visits(1, Origin::Address), visits(2, Origin::Address));
    }

    #[test]
    fn people_come_at_the_rates_that_were_planned() {
        let plan = Plan::new(42, PHASES, Origin::Address);
        let of = |crowd| plan.visits.iter().filter(|visit| visit.crowd == crowd).count() as f64 / 1100.0;
        assert!((4.7..5.3).contains(&of(Crowd::Human)), "{}", of(Crowd::Human));
        assert!((3.5..4.0).contains(&of(Crowd::Office)), "{}", of(Crowd::Office));
        assert!(plan.visits.is_sorted_by_key(|visit| visit.at));
        let archive = plan.visits.iter().filter(|visit| visit.kind == Kind::Archive).count() as f64;
        let share = archive / plan.visits.len() as f64;
        assert!((0.015..0.025).contains(&share), "{share}");
    }
}

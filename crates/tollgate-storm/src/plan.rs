//! Who comes when: the whole storm, decided before it starts.
//!
//! People do not slow down because a site is slow, so their visits are an open loop: the schedule is fixed by the seed, and
//! a visit's time counts from the moment it was due, not from the moment a free client got round to it. A closed loop would
//! stop asking while the site hangs and so forget to measure the worst of it. The crawler is the opposite: it asks again as
//! soon as it has an answer.

use crate::{
    crowd::{self, CRAWLER_CONNECTIONS, Crowd, Origin},
    dice::Dice,
    page::Kind,
};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};

/// Page views per second of all humans together.
const HUMAN_VIEWS_PER_SECOND: f64 = 5.0;
/// Page views per second of the office.
const OFFICE_VIEWS_PER_SECOND: f64 = 3.75;
/// One page in this many is an archive page.
const ARCHIVE_ONE_IN: u64 = 50;

/// How long each part of a storm lasts.
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
    /// When the crawler comes.
    pub const fn storm_at(self) -> Duration {
        self.calm
    }

    /// When the crawler leaves.
    pub fn recovery_at(self) -> Duration {
        self.calm + self.storm
    }

    /// When the last visit has come.
    pub fn end_at(self) -> Duration {
        self.calm + self.storm + self.recovery
    }
}

/// One person's look at one page with what it pulls in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When it is due, since the start.
    pub at: Duration,
    /// Human or office.
    pub crowd: Crowd,
    /// The client's address.
    pub source: Ipv4Addr,
    /// An article, or now and then an archive page.
    pub kind: Kind,
    /// Which page of that kind.
    pub id: u64,
}

/// Everything that will happen.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long it takes.
    pub phases: Phases,
    /// People's visits, in order of time.
    pub visits: Vec<Visit>,
    /// Where the crawler sits; none when nobody crawls.
    pub origin: Option<Origin>,
    /// Whether archive pages look like articles from outside.
    pub alike: bool,
    /// The network's round trip that the crawler waits before each try: loopback has none, and a crawler that is refused in
    /// no time would measure nothing but how fast this machine can refuse.
    pub crawler_round_trip: Duration,
    /// Connections that the crawler keeps busy.
    pub crawler_connections: u8,
}

impl Plan {
    /// The plan that `seed` stands for.
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
            crawler_round_trip: Duration::from_millis(20),
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
        let index = u8::try_from(dice.below(u64::from(crowd::HUMANS))).expect("an index below 40 is a byte");
        let source = if crowd == Crowd::Office { crowd::OFFICE } else { crowd::human(index) };
        visits.push(Visit { at, crowd, source, kind, id: dice.below(1_000_000) });
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

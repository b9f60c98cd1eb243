//! The journal of played storms, one per line. A storm in the journal is not played again, so that a
//! measurement of hours can be interrupted and continued.

use crate::{course::Course, run::Outcome, scenario::Scenario, variation::Variation};
use bench_storm::peers::Peer;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    time::Duration,
};
use tollgate_storm::{
    plan::{Phases, Plan},
    site,
};

/// One storm that was played.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Played {
    pub(crate) title: Title,
    pub(crate) outcome: Outcome,
}

/// The identity of a storm. Storms with the same title are equal and are played once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Title {
    pub(crate) scenario: Scenario,
    pub(crate) peer: Peer,
    pub(crate) seed: u64,
    pub(crate) phases: Phases,
    pub(crate) alike: bool,
    pub(crate) crawler_round_trip_ms: u64,
    /// The number of workers of the site, instead of the usual one.
    #[serde(default)]
    pub(crate) workers: Option<usize>,
    /// The fingerprint of the Tollgate binary; `None` for its peers.
    pub(crate) build: Option<u64>,
    /// The order in which people and the crawler arrive.
    #[serde(default)]
    pub(crate) course: Course,
    /// The parameters drawn from the seed; `None` in the fixed scenarios.
    #[serde(default)]
    pub(crate) variation: Option<Variation>,
}

impl Title {
    /// All requests of the storm.
    pub(crate) fn plan(&self) -> Plan {
        let mut plan = Plan::new(self.seed, self.phases, self.scenario.origin());
        plan.alike = self.alike;
        plan.crawler_round_trip = Duration::from_millis(self.crawler_round_trip_ms);
        plan.visits.retain(|visit| visit.at >= self.course.people_at());
        if let Some(variation) = self.variation {
            plan.crawler_connections = variation.crawler_connections.into();
        }
        plan
    }

    /// The site of this storm.
    pub(crate) fn site_settings(&self) -> site::Settings {
        let server_timing = self.peer.wants_server_timing();
        let settings = site::Settings { server_timing, ..site::Settings::default() };
        match self.variation {
            Some(Variation { costs, workers, .. }) => site::Settings { workers, costs, ..settings },
            None => site::Settings { workers: self.workers.unwrap_or(settings.workers), ..settings },
        }
    }

    /// Time between the start of the gate and the start of the plan.
    pub(crate) fn idle(&self) -> Duration {
        self.variation.map_or(Duration::ZERO, |variation| variation.idle)
    }

    /// Whether this storm shows the pages of the other one without a crawler.
    pub(crate) fn is_calm_of(&self, storm: &Self) -> bool {
        self.scenario == Scenario::S0
            && self.peer == storm.peer
            && self.build == storm.build
            && self.workers == storm.workers
            && self.variation == storm.variation
            && (self.variation.is_none() || self.seed == storm.seed)
    }
}

/// The storms played so far, and their file, if any.
pub(crate) struct Journal {
    file: Option<File>,
    played: Vec<Played>,
}

impl Journal {
    /// Continues the journal at `path`.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { file: None, played: Vec::new() }) };
        let played = if path.exists() { read(path)? } else { Vec::new() };
        Ok(Self { file: Some(File::options().create(true).append(true).open(path)?), played })
    }

    /// Whether a storm was already played.
    pub(crate) fn has(&self, title: &Title) -> bool {
        self.played.iter().any(|one| one.title == *title)
    }

    /// Records a storm.
    pub(crate) fn add(&mut self, one: Played) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_vec(&one)?;
            line.push(b'\n');
            file.write_all(&line)?;
        }
        self.played.push(one);
        Ok(())
    }

    /// The storms that were requested.
    pub(crate) fn of_titles(&self, titles: &[Title]) -> Vec<&Played> {
        self.played.iter().filter(|one| titles.contains(&one.title)).collect()
    }
}

/// Every storm of a journal.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Played>> {
    let text = fs::read_to_string(path)?;
    let lines = text.lines().enumerate();
    let fault = |number: usize, error| io::Error::other(format!("{}:{}: {error}", path.display(), number + 1));
    lines.map(|(number, line)| serde_json::from_str(line).map_err(|error| fault(number, error))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_storm::machine::ScratchDir;
    use tollgate_storm::{
        crowd::Crowd,
        page::Kind,
        tally::{Failure, View},
    };

    fn title(seed: u64) -> Title {
        let peer = Peer::of_name("nginx-limit-conn-2").unwrap();
        let second = Duration::from_secs(1);
        let phases = Phases { calm: second, storm: second, recovery: second };
        Title {
            scenario: Scenario::S3Block,
            peer,
            seed,
            phases,
            alike: false,
            crawler_round_trip_ms: 20,
            workers: None,
            build: None,
            course: Course::Storm,
            variation: None,
        }
    }

    #[test]
    fn the_calm_of_a_varied_storm_has_the_same_seed_and_no_crawler() {
        let storm = Title { variation: Some(Variation::of_seed(3)), ..title(3) };
        let calm = Title { scenario: Scenario::S0, ..storm.clone() };
        assert!(calm.is_calm_of(&storm) && !storm.is_calm_of(&storm));
        assert!(!Title { scenario: Scenario::S0, ..title(3) }.is_calm_of(&storm));
        assert_eq!(calm.plan().visits, storm.plan().visits);
        assert!(calm.plan().origin.is_none());
        assert!(Title { scenario: Scenario::S0, ..title(4) }.is_calm_of(&title(3)));
    }

    #[test]
    fn people_stay_away_while_the_crawler_is_alone() {
        let second = Duration::from_secs(1);
        let phases = Phases { calm: Duration::ZERO, storm: second * 20, recovery: second };
        let plan = Title { course: Course::Alone3s, phases, ..title(1) }.plan();
        assert!(!plan.visits.is_empty() && plan.visits.iter().all(|visit| visit.at >= second * 3));
    }

    #[test]
    fn a_played_storm_is_not_repeated_after_an_interruption() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("journal");
        let view = View {
            at: Duration::from_millis(1500),
            crowd: Crowd::Office,
            kind: Kind::Archive,
            page: Ok(Duration::from_micros(1234)),
            whole: Err(Failure::Refused(429)),
            ended: Duration::from_secs(2),
        };
        let outcome = Outcome { views: vec![view], tolls: Some(1.25), ..Outcome::default() };
        let mut journal = Journal::open(Some(&path)).unwrap();
        assert!(!journal.has(&title(1)));
        journal.add(Played { title: title(1), outcome }).unwrap();
        let journal = Journal::open(Some(&path)).unwrap();
        assert!(journal.has(&title(1)) && !journal.has(&title(2)));
        assert!(journal.of_titles(&[title(2)]).is_empty());
        let found = &journal.of_titles(&[title(2), title(1)])[0].outcome;
        assert_eq!((&found.views[..], found.tolls), (&[view][..], Some(1.25)));
    }

    #[test]
    fn a_line_that_is_no_storm_is_named() {
        let dir = ScratchDir::new().unwrap();
        let path = dir.path().join("journal");
        fs::write(&path, "{}\n").unwrap();
        assert!(Journal::open(Some(&path)).err().unwrap().to_string().contains("journal:1: missing field"));
    }
}

//! The storms that were played, a line of a file for each. What stands in it is not played again: hours of storms can be played in parts,
//! and a run that is broken off loses one storm.

use crate::{peers::Peer, run::Outcome, scenario::Scenario};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};
use tollgate_storm::plan::Phases;

/// One storm that was played.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Played {
    pub(crate) title: Title,
    pub(crate) outcome: Outcome,
}

/// All that makes one storm another than the next. Storms of the same title are the same, and need to be played once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Title {
    pub(crate) scenario: Scenario,
    pub(crate) peer: Peer,
    pub(crate) seed: u64,
    pub(crate) phases: Phases,
    pub(crate) alike: bool,
    pub(crate) crawler_round_trip_ms: u64,
    /// Which Tollgate it was: none for its peers.
    pub(crate) build: Option<u64>,
}

/// The storms played so far, and where they are written down, if anywhere.
pub(crate) struct Journal {
    file: Option<File>,
    played: Vec<Played>,
}

impl Journal {
    /// Goes on with the journal at `path`.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { file: None, played: Vec::new() }) };
        let played = if path.exists() { read(path)? } else { Vec::new() };
        Ok(Self { file: Some(File::options().create(true).append(true).open(path)?), played })
    }

    /// Whether a storm was played already.
    pub(crate) fn has(&self, title: &Title) -> bool {
        self.played.iter().any(|one| one.title == *title)
    }

    /// Writes a storm down.
    pub(crate) fn add(&mut self, one: Played) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_vec(&one)?;
            line.push(b'\n');
            file.write_all(&line)?;
        }
        self.played.push(one);
        Ok(())
    }

    /// Those of the storms that were asked for.
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
    use crate::machine::ScratchDir;
    use std::time::Duration;
    use tollgate_storm::{
        crowd::Crowd,
        page::Kind,
        tally::{Failure, View},
    };

    fn title(seed: u64) -> Title {
        let peer = Peer::of_name("nginx-limit-conn-2").unwrap();
        let second = Duration::from_secs(1);
        let phases = Phases { calm: second, storm: second, recovery: second };
        Title { scenario: Scenario::S3Block, peer, seed, phases, alike: false, crawler_round_trip_ms: 20, build: None }
    }

    #[test]
    fn what_was_played_is_there_after_a_break_and_is_not_played_again() {
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

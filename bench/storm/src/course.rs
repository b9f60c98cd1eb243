//! The course of a storm: the order in which people and the crawler arrive, and whether the gate is restarted.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tollgate_storm::plan::Phases;

/// The course of a storm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Course {
    /// People are there first. The crawler joins them.
    #[default]
    Storm,
    /// The same. The gate crashes and is restarted in the middle of the storm.
    Restart,
    /// The crawler has the site alone for 3 s before people arrive.
    #[value(name = "alone-3s")]
    Alone3s,
    /// The crawler has the site alone for 40 s before people arrive.
    #[value(name = "alone-40s")]
    Alone40s,
}

impl Course {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Storm => "",
            Self::Restart => ", gate restarted",
            Self::Alone3s => ", crawler alone 3 s",
            Self::Alone40s => ", crawler alone 40 s",
        }
    }

    /// The moment at which the first people arrive.
    pub(crate) const fn people_at(self) -> Duration {
        match self {
            Self::Storm | Self::Restart => Duration::ZERO,
            Self::Alone3s => Duration::from_secs(3),
            Self::Alone40s => Duration::from_secs(40),
        }
    }

    /// The phases of this course, for a storm that would otherwise have `phases`.
    pub(crate) fn phases(self, phases: Phases) -> Phases {
        match self {
            Self::Storm | Self::Restart => phases,
            Self::Alone3s | Self::Alone40s => {
                Phases { calm: Duration::ZERO, storm: self.people_at() + phases.storm, ..phases }
            }
        }
    }

    /// The moment at which people and the crawler first meet. Measurements begin here.
    pub(crate) fn meeting_at(self, phases: Phases) -> Duration {
        phases.storm_at().max(self.people_at())
    }

    /// The moment at which the gate is restarted: the middle of the time that people and the crawler share.
    pub(crate) fn restart_at(self, phases: Phases) -> Option<Duration> {
        let meeting_at = self.meeting_at(phases);
        (self == Self::Restart).then(|| meeting_at + (phases.recovery_at() - meeting_at) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_people_still_see_a_complete_storm() {
        let second = Duration::from_secs(1);
        let phases = Phases { calm: second * 9, storm: second * 12, recovery: second };
        let alone = Course::Alone3s.phases(phases);
        assert_eq!((alone.storm_at(), alone.recovery_at()), (Duration::ZERO, second * 15));
        assert_eq!(Course::Alone3s.meeting_at(alone), second * 3);
        assert_eq!(Course::Storm.meeting_at(phases), second * 9);
        assert_eq!(Course::Restart.restart_at(phases), Some(second * 15));
        assert_eq!(Course::Storm.restart_at(phases), None);
    }
}

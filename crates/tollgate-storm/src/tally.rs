//! What the crowds saw, while and after it happened.

use crate::{crowd::Crowd, page::Kind};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// How long a person waits for anything before giving up; what failed counts as this long.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Why a person did not get what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// An answer came, but not the page.
    Refused(u16),
    /// No answer within [`PATIENCE`].
    Late,
    /// The connection failed.
    Broken,
}

/// One visit, as the visitor saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// When it was due, since the start.
    pub at: Duration,
    /// Whose it was.
    pub crowd: Crowd,
    /// What it asked for.
    pub kind: Kind,
    /// From when it was due until the page was there.
    pub page: Result<Duration, Failure>,
    /// From when it was due until everything on the page was there.
    pub whole: Result<Duration, Failure>,
    /// When it was over, one way or the other, since the start.
    pub ended: Duration,
}

impl View {
    /// The page's time, failures at their price.
    pub fn page_time(&self) -> Duration {
        self.page.unwrap_or(PATIENCE)
    }
}

/// The crawler's answers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crawled {
    /// Pages that it got.
    pub answered: u64,
    /// Answers that were not the page.
    pub refused: u64,
    /// Tries that ended without an answer.
    pub broken: u64,
}

/// Everything seen so far; shared between those who see and those who watch.
#[derive(Debug, Default)]
pub struct Tally {
    views: Mutex<Vec<View>>,
    answered: AtomicU64,
    refused: AtomicU64,
    broken: AtomicU64,
}

impl Tally {
    /// The visits that are over, in the order in which they ended. Their number is bounded by the plan's.
    pub fn views(&self) -> MutexGuard<'_, Vec<View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the crawler got.
    pub fn crawled(&self) -> Crawled {
        Crawled {
            answered: self.answered.load(Relaxed),
            refused: self.refused.load(Relaxed),
            broken: self.broken.load(Relaxed),
        }
    }

    pub(crate) fn crawl(&self, outcome: Result<(), Failure>) {
        let count = match outcome {
            Ok(()) => &self.answered,
            Err(Failure::Refused(_)) => &self.refused,
            Err(Failure::Late | Failure::Broken) => &self.broken,
        };
        count.fetch_add(1, Relaxed);
    }
}

/// The smallest of `times` that at least `percent` % of them do not exceed; nothing of nothing.
pub fn percentile(times: &mut [Duration], percent: f64) -> Option<Duration> {
    times.sort_unstable();
    let rank = (percent / 100.0 * times.len() as f64).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values_and_covers_its_share() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 99.0), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&mut times, 50.0), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&mut times, 100.0), Some(Duration::from_millis(200)));
        assert_eq!(percentile(&mut times[..1], 99.0), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&mut [], 99.0), None);
    }

    #[test]
    fn the_crawlers_answers_are_counted_by_what_they_were() {
        let tally = Tally::default();
        for outcome in [Ok(()), Err(Failure::Refused(429)), Err(Failure::Refused(503)), Err(Failure::Broken)] {
            tally.crawl(outcome);
        }
        assert_eq!(tally.crawled(), Crawled { answered: 1, refused: 2, broken: 1 });
    }
}

//! The tally of a storm: the result of each page view, and the crawler's totals. The clients fill it during the storm,
//! the demo displays it meanwhile, and `results.rs` summarizes it at the end.

use crate::{crowd::Crowd, page::Kind};
use serde::{Deserialize, Serialize};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The time after which a person gives up: on the page, counted from the planned start of the view, and then again on
/// its assets, counted from the page. A failed page counts as this long.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The reason of a failed page view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// A response other than the page.
    Refused(u16),
    /// No response within [`PATIENCE`].
    Late,
    /// The connection failed.
    Broken,
}

/// The result of one page view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The planned start, since the start of the plan.
    pub at: Duration,
    /// The visitor's crowd.
    pub crowd: Crowd,
    /// The kind of page.
    pub kind: Kind,
    /// The time from the planned start to the page.
    pub page: Result<Duration, Failure>,
    /// The time from the planned start to the page with all its assets.
    pub whole: Result<Duration, Failure>,
    /// The end of the view, since the start of the plan.
    pub ended: Duration,
}

impl View {
    /// The page's time, or [`PATIENCE`] for a failure.
    pub fn page_time(&self) -> Duration {
        self.page.unwrap_or(PATIENCE)
    }
}

/// The crawler's results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crawled {
    /// Pages received.
    pub answered: u64,
    /// Responses other than the page.
    pub refused: u64,
    /// Requests without a complete response.
    pub broken: u64,
}

/// All results so far, shared between the clients and the display.
#[derive(Debug, Default)]
pub struct Tally {
    views: Mutex<Vec<View>>,
    crawled: Mutex<Crawled>,
}

impl Tally {
    /// The finished views, in the order of their end. The plan bounds their number.
    pub fn views(&self) -> MutexGuard<'_, Vec<View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The crawler's results.
    pub fn crawled(&self) -> Crawled {
        *self.lock_crawled()
    }

    /// Adds the outcome of one request of the crawler.
    pub(crate) fn crawl(&self, outcome: Result<(), Failure>) {
        let mut crawled = self.lock_crawled();
        *match outcome {
            Ok(()) => &mut crawled.answered,
            Err(Failure::Refused(_)) => &mut crawled.refused,
            Err(Failure::Late | Failure::Broken) => &mut crawled.broken,
        } += 1;
    }

    fn lock_crawled(&self) -> MutexGuard<'_, Crawled> {
        self.crawled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The smallest of `times` that at least `percent` % of them do not exceed; `None` without times.
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
    fn the_crawlers_responses_are_counted_by_outcome() {
        let tally = Tally::default();
        for outcome in [Ok(()), Err(Failure::Refused(429)), Err(Failure::Refused(503)), Err(Failure::Broken)] {
            tally.crawl(outcome);
        }
        assert_eq!(tally.crawled(), Crawled { answered: 1, refused: 2, broken: 1 });
    }
}

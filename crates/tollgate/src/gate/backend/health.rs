//! How a backend is doing, judged by the requests it gets anyway.
//!
//! A backend that fails several times in a row is down: requests go elsewhere, or are told so at once instead of piling up behind
//! connects that time out. After a while one request is let through to see (half open); if it is answered the backend is up, if
//! not it stays down for twice as long.

use std::time::Duration;

/// How many failures in a row make a backend down.
const FAILURES_MAX: u32 = 3;
/// How long a backend is down the first time.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// How long it is down at most before it is tried again.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// A probe that has not come back after this long is given up, and another is let through.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// The state of one backend. Times are since any fixed moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    failures: u32,
    down: Option<Down>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Down {
    backoff: Duration,
    /// When a probe may be let through.
    probe_at: Duration,
    /// Whether one is under way.
    probing: bool,
}

impl Health {
    /// Whether there is nothing to remember.
    pub(crate) fn is_good(&self) -> bool {
        *self == Self::default()
    }

    /// Whether requests may go there, or else for how long not.
    pub(crate) fn is_up(&self, now: Duration) -> Result<(), Duration> {
        match self.down {
            Some(down) if now < down.probe_at => Err(down.probe_at - now),
            _ => Ok(()),
        }
    }

    /// Lets a request through if it is up; when it is half open, only one.
    pub(crate) fn admit(&mut self, now: Duration) -> bool {
        match &mut self.down {
            Some(down) if now < down.probe_at => false,
            Some(down) => {
                *down = Down { probe_at: now + PROBE_MAX, probing: true, ..*down };
                true
            }
            None => true,
        }
    }

    /// The same, when the time for a probe has come.
    #[cfg(test)]
    pub(super) fn due(self, now: Duration) -> Self {
        Self { down: self.down.map(|down| Down { probe_at: now, ..down }), ..self }
    }

    /// The probe that is under way, by when it is given up.
    pub(crate) fn probe(&self) -> Option<Duration> {
        self.down.filter(|down| down.probing).map(|down| down.probe_at)
    }

    /// Nothing came of a probe, because its client has left: the next request is one.
    pub(crate) fn abandon(&mut self, probe: Duration, now: Duration) {
        if let Some(down) = &mut self.down
            && down.probing
            && down.probe_at == probe
        {
            *down = Down { probe_at: now, probing: false, ..*down };
        }
    }

    /// It answered. Says whether it was down until now.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_down = self.down.is_some();
        *self = Self::default();
        was_down
    }

    /// It failed. Says for how long it is down if that is news.
    pub(crate) fn failed(&mut self, now: Duration) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let backoff = match self.down {
            Some(down) if down.probing => (down.backoff * 2).min(BACKOFF_MAX),
            // One that was under way when the backend went down.
            Some(_) => return None,
            None if self.failures < FAILURES_MAX => return None,
            None => BACKOFF_MIN,
        };
        self.down = Some(Down { backoff, probe_at: now + backoff, probing: false });
        Some(backoff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn down() -> Health {
        let mut health = Health::default();
        assert_eq!(health.failed(at(0)), None);
        assert_eq!(health.failed(at(0)), None);
        assert_eq!(health.failed(at(0)), Some(BACKOFF_MIN));
        health
    }

    #[test]
    fn a_few_failures_in_a_row_are_needed() {
        let mut health = Health::default();
        for _ in 0..10 {
            health.failed(at(0));
            health.failed(at(0));
            assert_eq!(health.is_up(at(0)), Ok(()));
            health.succeeded();
        }
        assert!(health.is_good());
    }

    #[test]
    fn one_probe_is_let_through_when_the_backoff_is_over() {
        let mut health = down();
        assert_eq!(health.is_up(at(0)), Err(BACKOFF_MIN));
        assert!(!health.admit(at(0)));
        assert!(health.admit(at(1)));
        assert!(!health.admit(at(1)), "only one");
        assert!(health.succeeded());
        assert!(health.is_good());
    }

    #[test]
    fn a_failed_probe_doubles_the_backoff_up_to_its_bound() {
        let mut health = down();
        let mut now = at(1);
        for backoff in [2, 4, 8, 15, 15] {
            assert!(health.admit(now));
            assert_eq!(health.failed(now), Some(at(backoff)));
            assert!(!health.admit(now));
            now += at(backoff);
        }
    }

    #[test]
    fn a_probe_that_never_returns_is_replaced() {
        let mut health = down();
        assert!(health.admit(at(1)));
        assert!(!health.admit(at(10)));
        assert!(health.admit(at(11)));
    }

    #[test]
    fn a_probe_whose_client_leaves_makes_room_for_the_next() {
        let mut health = down();
        assert_eq!(health.probe(), None);
        assert!(health.admit(at(1)));
        let probe = health.probe().unwrap();
        assert!(!health.admit(at(2)));
        health.abandon(probe, at(2));
        assert!(health.admit(at(2)), "another is a probe at once");
        health.abandon(probe, at(3));
        assert!(!health.admit(at(3)), "one that is over is not given up twice");
        assert_eq!(health.failed(at(3)), Some(at(2)), "and what it is told counts");
        health.abandon(probe, at(4));
        assert_eq!(health.is_up(at(4)), Err(at(1)));
    }

    #[test]
    fn late_failures_of_requests_that_were_under_way_change_nothing() {
        let mut health = down();
        assert_eq!(health.failed(Duration::from_millis(500)), None);
        assert!(health.admit(at(1)));
    }
}

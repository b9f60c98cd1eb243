//! When a turn comes, in real time.
//!
//! Tags say in which order, in virtual time; a client that is turned away has to be told seconds. So this watches how fast
//! virtual time passes.

use crate::time::{Moment, Span};

/// Virtual time is measured over at least this long.
const STRETCH: Span = Span::from_secs(1);
/// Nobody is told to wait longer than this, or shorter than that.
const WAIT_MAX: Span = Span::from_secs(3600);
const WAIT_MIN: Span = Span::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    since: Moment,
    time: u64,
    /// Virtual nanoseconds per microsecond.
    pace: u64,
}

impl Estimate {
    pub(super) fn new(pace: u64, time: u64, now: Moment) -> Self {
        Self { since: now, time, pace: pace.max(1) }
    }

    /// Virtual time is `time` now.
    pub(super) fn observe(&mut self, time: u64, now: Moment) {
        let elapsed = now.since(self.since);
        if elapsed >= STRETCH {
            self.pace = (time.saturating_sub(self.time) / (elapsed.as_nanos() / 1000)).max(1);
            (self.since, self.time) = (now, time);
        }
    }

    /// Virtual time has jumped to `time`: that is not its pace.
    pub(super) fn restart(&mut self, time: u64, now: Moment) {
        (self.since, self.time) = (now, time);
    }

    /// How long until virtual time has advanced by so much.
    pub(super) fn wait(&self, virtual_nanos: u64) -> Span {
        Span::from_nanos((virtual_nanos / self.pace).saturating_mul(1000)).clamp(WAIT_MIN, WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_at_the_pace_of_virtual_time() {
        let mut estimate = Estimate::new(10_000, 0, Moment::ZERO);
        assert_eq!(estimate.wait(20_000_000_000), Span::from_secs(2));
        estimate.observe(4_000_000_000, Moment::from_millis(2000));
        assert_eq!(estimate.wait(20_000_000_000), Span::from_secs(10));
        estimate.observe(4_000_000_000, Moment::from_millis(9000));
        assert_eq!(estimate.wait(20_000_000_000), WAIT_MAX);
        assert_eq!(estimate.wait(0), WAIT_MIN);
    }
}

//! A circuit breaker that stops calls to an unavailable store and probes it now and then.
//!
//! Without it, every request would wait for its full deadline while the store is down. After a few failures
//! in a row, no calls are made; then one request at a time is let through as a probe, with jittered and
//! growing pauses, until one succeeds.
//!
//! Many requests are in flight at once, so a short stall causes many failures in a row. It must not count as
//! an outage, so the failures must last for a minimum time. Calls that started before the breaker opened do not
//! show the store's later state, so only failed probes lengthen the pauses.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};

/// The breaker opens after this many failures in a row, if they last for at least [`MISSING_MIN`].
const MISSES_MAX: u32 = 5;
/// The minimum time from the first failure to the one that opens the breaker.
const MISSING_MIN: Span = Span::from_millis(10);
/// The pause before the first probe. It doubles with every failed probe.
const PAUSE_MIN: Span = Span::from_millis(50);
/// The longest pause between probes.
const PAUSE_MAX: Span = Span::from_secs(1);

/// The circuit breaker of a store, or of a part of a Cluster.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The number of failures in a row.
    misses: AtomicU32,
    /// The time of the first of these failures, in nanoseconds.
    missing_since: AtomicU64,
    /// The time at which the breaker opened, in nanoseconds.
    gone_since: AtomicU64,
    /// The time of the next probe, in nanoseconds; 0 while the breaker is closed.
    probe_at: AtomicU64,
    /// The number of failed probes.
    probes_missed: AtomicU32,
}

impl Breaker {
    /// Whether [`Self::lets_through`] can return `true` at `now`.
    pub(super) fn may_ask(&self, now: Moment) -> bool {
        now.as_nanos() >= self.probe_at.load(Ordering::Relaxed)
    }

    /// Whether to make a call at `now`. While the breaker is open, `true` permits a probe, and the only one
    /// until the next pause ends.
    pub(super) fn lets_through(&self, now: Moment) -> bool {
        let probe_at = self.probe_at.load(Ordering::Relaxed);
        if probe_at == 0 {
            return true;
        }
        if now.as_nanos() < probe_at {
            return false;
        }
        let next = (now + PAUSE_MAX).as_nanos();
        self.probe_at.compare_exchange(probe_at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Records an answer in time, which closes the breaker.
    pub(super) fn answered(&self) {
        // The common case writes nothing, which avoids contention for the cache line.
        if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
            self.probes_missed.store(0, Ordering::Relaxed);
            self.probe_at.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure of a call that started at `asked`; `random` is any number, which jitters the next probe.
    pub(super) fn missed(&self, asked: Moment, now: Moment, random: u64) {
        if self.is_open() {
            if asked.as_nanos() >= self.gone_since.load(Ordering::Relaxed) {
                let probes = self.probes_missed.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                self.pause(probes, now, random);
            }
            return;
        }
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if misses == 1 {
            self.missing_since.store(now.as_nanos(), Ordering::Relaxed);
        }
        let missing_since = Moment::from_nanos(self.missing_since.load(Ordering::Relaxed));
        if misses >= MISSES_MAX && now.since(missing_since) >= MISSING_MIN {
            self.gone_since.store(now.as_nanos(), Ordering::Relaxed);
            self.pause(0, now, random);
        }
    }

    /// Delays the next probe, longer after more failed ones.
    fn pause(&self, probes_missed: u32, now: Moment, random: u64) {
        let pause = PAUSE_MIN.times(1 << probes_missed.min(10)).min(PAUSE_MAX).as_nanos();
        let jittered = pause / 2 + random % (pause / 2 + 1);
        self.probe_at.store((now + Span::from_nanos(jittered)).as_nanos().max(1), Ordering::Relaxed);
    }

    /// Whether the breaker is open.
    pub(super) fn is_open(&self) -> bool {
        self.probe_at.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    /// A breaker that opened at 10 ms.
    fn broken() -> Breaker {
        let breaker = Breaker::default();
        for miss in 0..=u64::from(MISSES_MAX) {
            assert!(breaker.lets_through(at(2 * miss)));
            breaker.missed(at(0), at(2 * miss), u64::MAX);
        }
        breaker
    }

    #[test]
    fn a_few_failures_in_a_row_open_the_breaker() {
        let breaker = broken();
        assert!(breaker.is_open());
        assert!(!breaker.lets_through(at(10)));
    }

    #[test]
    fn failures_that_are_not_in_a_row_do_not_count() {
        let breaker = Breaker::default();
        for miss in 0..100 {
            breaker.missed(at(miss), at(miss + 5), 0);
            breaker.answered();
        }
        assert!(breaker.lets_through(at(200)));
    }

    #[test]
    fn a_short_stall_of_many_calls_is_no_outage() {
        let breaker = Breaker::default();
        for miss in 0..1_000 {
            breaker.missed(at(0), at(5 + miss / 200), 0);
        }
        assert!(!breaker.is_open());
        breaker.answered();
        breaker.missed(at(100), at(105), 0);
        assert!(!breaker.is_open());
    }

    #[test]
    fn calls_from_before_the_outage_do_not_delay_probes() {
        let breaker = broken();
        for _ in 0..1_000 {
            breaker.missed(at(9), at(14), u64::MAX);
        }
        assert!(breaker.lets_through(at(60)), "no later than 50 ms after 10");
    }

    #[test]
    fn one_probe_at_a_time_after_a_pause() {
        let breaker = broken();
        assert!(breaker.lets_through(at(60)));
        assert!(!breaker.lets_through(at(60)));
        breaker.missed(at(60), at(65), u64::MAX);
        assert!(!breaker.lets_through(at(70)));
        assert!(breaker.lets_through(at(165)));
    }

    #[test]
    fn an_answered_probe_closes_the_breaker() {
        let breaker = broken();
        assert!(breaker.lets_through(at(60)));
        breaker.answered();
        assert!(!breaker.is_open());
        assert!(breaker.lets_through(at(60)) && breaker.lets_through(at(60)));
    }

    #[test]
    fn pauses_grow_up_to_a_second_and_a_lost_probe_is_followed_by_another() {
        let breaker = broken();
        let mut now = 10;
        for _ in 0..10 {
            now += 1_000;
            assert!(breaker.lets_through(at(now)), "at {now}");
            breaker.missed(at(now), at(now), u64::MAX);
        }
        now += 1_000;
        assert!(breaker.lets_through(at(now)));
        assert!(breaker.lets_through(at(now + 1_000)));
    }
}

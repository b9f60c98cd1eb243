//! Stops asking a store that does not answer, and tries it again now and then.
//!
//! Without it every request would wait for its whole deadline for as long as the store is gone. After a few misses in a row
//! nobody asks any more; then one request at a time is let through as a probe, at growing and jittered pauses, until one is answered.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};

/// So many misses in a row and the store counts as gone.
const MISSES_MAX: u32 = 5;
const PAUSE_MIN: Span = Span::from_millis(50);
const PAUSE_MAX: Span = Span::from_secs(1);

/// Whether a store, or a part of a Cluster, is worth asking.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    misses: AtomicU32,
    /// When the next probe may go, in nanoseconds; 0 while the store is asked as usual.
    probe_at: AtomicU64,
}

impl Breaker {
    /// Whether [`Self::lets_through`] can say yes at `now`.
    pub(super) fn may_ask(&self, now: Moment) -> bool {
        now.as_nanos() >= self.probe_at.load(Ordering::Relaxed)
    }

    /// Whether to ask at `now`. A yes while the store counts as gone is a probe, and the only one until the next pause is over.
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

    /// The store has answered in time.
    pub(super) fn answered(&self) {
        // The common case writes nothing, so that cores do not fight for the line.
        if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
            self.probe_at.store(0, Ordering::Relaxed);
        }
    }

    /// The store has not answered in time; `random` spreads the probes of many gates.
    pub(super) fn missed(&self, now: Moment, random: u64) {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if misses >= MISSES_MAX {
            let pause = PAUSE_MIN.times(1 << (misses - MISSES_MAX).min(10)).min(PAUSE_MAX).as_nanos();
            let jittered = pause / 2 + random % (pause / 2 + 1);
            self.probe_at.store((now + Span::from_nanos(jittered)).as_nanos().max(1), Ordering::Relaxed);
        }
    }

    /// Whether the store counts as gone.
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

    fn broken() -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..MISSES_MAX {
            assert!(breaker.lets_through(at(0)));
            breaker.missed(at(0), u64::MAX);
        }
        breaker
    }

    #[test]
    fn a_few_misses_in_a_row_and_nobody_asks() {
        let breaker = broken();
        assert!(breaker.is_open());
        assert!(!breaker.lets_through(at(0)));
    }

    #[test]
    fn misses_that_are_not_in_a_row_do_not_count() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            breaker.missed(at(0), 0);
            breaker.answered();
        }
        assert!(breaker.lets_through(at(0)));
    }

    #[test]
    fn one_probe_at_a_time_after_a_pause() {
        let breaker = broken();
        assert!(breaker.lets_through(at(50)));
        assert!(!breaker.lets_through(at(50)));
        breaker.missed(at(55), u64::MAX);
        assert!(!breaker.lets_through(at(60)));
        assert!(breaker.lets_through(at(155)));
    }

    #[test]
    fn an_answered_probe_opens_the_way_for_all() {
        let breaker = broken();
        assert!(breaker.lets_through(at(50)));
        breaker.answered();
        assert!(!breaker.is_open());
        assert!(breaker.lets_through(at(50)) && breaker.lets_through(at(50)));
    }

    #[test]
    fn pauses_grow_up_to_a_second_and_a_lost_probe_is_followed_by_another() {
        let breaker = broken();
        let mut now = 0;
        for _ in 0..10 {
            now += 1_000;
            assert!(breaker.lets_through(at(now)), "at {now}");
            breaker.missed(at(now), u64::MAX);
        }
        now += 1_000;
        assert!(breaker.lets_through(at(now)));
        assert!(breaker.lets_through(at(now + 1_000)));
    }
}

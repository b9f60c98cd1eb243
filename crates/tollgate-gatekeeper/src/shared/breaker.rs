//! Stops asking a store that does not answer, and tries it again now and then.
//!
//! Without it every request would wait for its whole deadline for as long as the store is gone. After a few misses in a row
//! nobody asks any more; then one request at a time is let through as a probe, at growing and jittered pauses, until one is answered.
//!
//! Many requests are under way at once, so one short standstill is many misses in a row. It must not count as an outage: misses must go on for
//! longer than that. And what was asked before the store counted as gone says nothing about it since: only probes make pauses grow.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};

/// So many misses in a row, over so long, and the store counts as gone.
const MISSES_MAX: u32 = 5;
const MISSING_MIN: Span = Span::from_millis(10);
const PAUSE_MIN: Span = Span::from_millis(50);
const PAUSE_MAX: Span = Span::from_secs(1);

/// Whether a store, or a part of a Cluster, is worth asking.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    misses: AtomicU32,
    /// When the first of these misses was, in nanoseconds.
    missing_since: AtomicU64,
    /// When the store began to count as gone, in nanoseconds.
    gone_since: AtomicU64,
    /// When the next probe may go, in nanoseconds; 0 while the store is asked as usual.
    probe_at: AtomicU64,
    /// How many probes were missed.
    probes_missed: AtomicU32,
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
            self.probes_missed.store(0, Ordering::Relaxed);
            self.probe_at.store(0, Ordering::Relaxed);
        }
    }

    /// The store has not answered in time what it was asked at `asked`; `random` spreads the probes of many gates.
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

    /// Puts the next probe off, for the longer the more have been missed.
    fn pause(&self, probes_missed: u32, now: Moment, random: u64) {
        let pause = PAUSE_MIN.times(1 << probes_missed.min(10)).min(PAUSE_MAX).as_nanos();
        let jittered = pause / 2 + random % (pause / 2 + 1);
        self.probe_at.store((now + Span::from_nanos(jittered)).as_nanos().max(1), Ordering::Relaxed);
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

    /// A store that counts as gone since 10 ms.
    fn broken() -> Breaker {
        let breaker = Breaker::default();
        for miss in 0..=u64::from(MISSES_MAX) {
            assert!(breaker.lets_through(at(2 * miss)));
            breaker.missed(at(0), at(2 * miss), u64::MAX);
        }
        breaker
    }

    #[test]
    fn a_few_misses_in_a_row_and_nobody_asks() {
        let breaker = broken();
        assert!(breaker.is_open());
        assert!(!breaker.lets_through(at(10)));
    }

    #[test]
    fn misses_that_are_not_in_a_row_do_not_count() {
        let breaker = Breaker::default();
        for miss in 0..100 {
            breaker.missed(at(miss), at(miss + 5), 0);
            breaker.answered();
        }
        assert!(breaker.lets_through(at(200)));
    }

    #[test]
    fn a_standstill_that_many_notice_at_once_is_no_outage() {
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
    fn what_was_asked_before_the_store_was_gone_does_not_put_probes_off() {
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
    fn an_answered_probe_opens_the_way_for_all() {
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

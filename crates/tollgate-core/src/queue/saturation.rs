//! Whether the in-flight limit of heavy clients ([`Contention`](super::Contention)) keeps the backend's machine busy,
//! where the gate can see how busy that is.
//!
//! Times of requests show only after some hundred of them whether a backend has cores to spare. Its machine shows it
//! within half a second: a smaller limit under which it is as busy serves as many requests, each of them sooner.
//!
//! | limit | machine | advice |
//! |---|---|---|
//! | no failed trial for [`PAUSE`] | nearly a core is busy | [`Advice::TryFewer`]: as many as cores are busy, or half |
//! | smaller than before | less busy, now or later | [`Advice::TooFew`] |
//! | larger than before | no busier | [`Advice::TooMany`] |
//!
//! Readings count while the limit is used, and when requests from before it was lowered have left.

use crate::time::{Moment, Span};
use crate::virtual_clock::Cores;

/// Readings of the machine's CPU time that show how busy it is. The kernel counts in steps of 10 ms.
const READINGS: u64 = 8;
/// A machine is less busy below this part of the reading before, and busier above that one, in percent.
const LESS: u64 = 93;
const MORE: u64 = 105;
/// In thousandths: with fewer busy cores, nothing on a machine computes all the time.
const BUSY_MIN: u64 = 800;
/// Requests from before a smaller limit have to leave within this time.
const SETTLING_MAX: Span = Span::from_secs(2);
/// A smaller limit that left cores idle is not tried again before this time.
const PAUSE: Span = Span::from_secs(40);

#[derive(Clone, Copy, Debug)]
pub(super) enum Advice {
    /// This smaller limit may do.
    TryFewer(u32),
    /// The limit leaves cores idle. This one did not.
    TooFew(u32),
    /// The limit keeps no more cores busy than this one did.
    TooMany(u32),
}

/// How busy the machine is under the limit in force, in thousandths of a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saturation {
    sum: u64,
    readings: u64,
    mean: Option<u64>,
    /// Whether the requests in flight are no more than the limit allows.
    is_settled: bool,
    /// The limit before, and how busy the machine was under it.
    before: Option<(u32, u64)>,
    changed_at: Moment,
    /// A smaller limit is not tried before this.
    next_trial: Moment,
    /// The mean of the last readings, whether or not anybody competes.
    recent: u64,
}

impl Saturation {
    pub(super) const fn new(now: Moment) -> Self {
        Self {
            sum: 0,
            readings: 0,
            mean: None,
            is_settled: false,
            before: None,
            changed_at: now,
            next_trial: now,
            recent: 0,
        }
    }

    /// Takes a reading of the busy cores, whether or not anybody competes.
    pub(super) fn see(&mut self, busy: Cores) {
        let busy = u64::from(busy.as_milli());
        self.recent = if self.recent == 0 { busy } else { (self.recent * 7 + busy) / 8 };
    }

    /// Whether nearly all of these cores have been busy of late.
    pub(super) fn is_saturated(&self, cores: Cores) -> bool {
        self.recent * 10 >= u64::from(cores.as_milli()) * 9
    }

    /// How busy the machine is under this limit, if that is known by now.
    pub(super) const fn busy_milli(&self) -> Option<u64> {
        self.mean
    }

    /// Heavy clients compete with others from now on, perhaps again: the results of earlier trials are kept.
    pub(super) const fn begin(&mut self) {
        self.is_settled = false;
    }

    /// The limit changes. The machine is compared with what it was before if that is a trial.
    pub(super) fn change(&mut self, from: u32, to: u32, is_trial: bool, now: Moment) {
        self.changed_at = now;
        self.before = self.mean.filter(|_| is_trial).map(|mean| (from, mean));
        self.is_settled &= to >= from;
        (self.sum, self.readings, self.mean) = (0, 0, None);
    }

    /// Takes a reading of the busy cores, with this many requests of heavy clients in flight.
    pub(super) fn record(&mut self, busy: Cores, in_flight: u32, limit: u32, now: Moment) -> Option<Advice> {
        // A reading is about the time before it.
        let was_settled = self.is_settled;
        self.is_settled = (was_settled && in_flight <= 2 * limit) || in_flight <= limit;
        if !self.is_settled {
            (self.sum, self.readings) = (0, 0);
            return self.give_up(limit, now);
        }
        if !was_settled || in_flight * 4 < limit * 3 {
            return None;
        }
        self.sum += u64::from(busy.as_milli());
        self.readings += 1;
        let mean = self.sum / self.readings;
        let is_less = self.before.is_some_and(|(_, before)| mean * 100 < before * LESS);
        if self.readings < if is_less { READINGS / 2 } else { READINGS } {
            return None;
        }
        (self.sum, self.readings, self.mean) = (0, 0, Some(mean));
        self.advise(limit, mean, is_less, now)
    }

    /// Ends the trial of a smaller limit if requests from before it do not leave, such as long polls.
    fn give_up(&mut self, limit: u32, now: Moment) -> Option<Advice> {
        let (before, _) = self.before.filter(|(before, _)| *before > limit)?;
        (now.since(self.changed_at) > SETTLING_MAX).then(|| {
            self.next_trial = now + PAUSE;
            Advice::TooFew(before)
        })
    }

    /// The advice after enough readings, by the table at the top. `mean` is how busy the machine is, in thousandths of
    /// a core; `is_less` is whether that is clearly less than before the limit changed.
    fn advise(&mut self, limit: u32, mean: u64, is_less: bool, now: Moment) -> Option<Advice> {
        match self.before {
            Some((before, _)) if before > limit && is_less => {
                self.next_trial = now + PAUSE;
                Some(Advice::TooFew(before))
            }
            Some((before, busy)) if before < limit && mean * 100 <= busy * MORE => Some(Advice::TooMany(before)),
            _ if limit > 1 && now >= self.next_trial && mean >= BUSY_MIN => {
                let busy = u32::try_from(mean.div_ceil(1000)).unwrap_or(u32::MAX);
                let fewer = if busy < limit { busy } else { limit / 2 };
                Some(Advice::TryFewer(fewer.max(1)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    /// The advice after readings of a machine with so many cores, of which heavy requests keep `limit` busy.
    fn advice(saturation: &mut Saturation, cores: u32, limit: u32, from: u64) -> Option<Advice> {
        let busy = Cores::whole(cores.min(limit));
        (0..=READINGS).find_map(|n| saturation.record(busy, limit, limit, at(from + 50 * n)))
    }

    #[test]
    fn a_limit_of_the_busy_cores_is_tried_and_stays_if_the_machine_is_as_busy() {
        let mut saturation = Saturation::new(at(0));
        let Some(Advice::TryFewer(fewer)) = advice(&mut saturation, 2, 8, 0) else { panic!("a trial") };
        assert_eq!(fewer, 2);
        saturation.change(8, fewer, true, at(900));
        let Some(Advice::TryFewer(half)) = advice(&mut saturation, 2, 2, 1000) else { panic!("another trial") };
        assert_eq!(half, 1);
        saturation.change(fewer, half, true, at(1900));
        assert!(matches!(advice(&mut saturation, 2, 1, 2000), Some(Advice::TooFew(limit)) if limit == fewer));
        saturation.change(half, fewer, false, at(2900));
        assert!(advice(&mut saturation, 2, 2, 3000).is_none(), "not again soon");
        assert!(matches!(advice(&mut saturation, 2, 2, 50_000), Some(Advice::TryFewer(_))));
    }

    #[test]
    fn a_smaller_limit_that_failed_is_not_tried_again_after_a_short_pause_of_contention() {
        let mut saturation = Saturation::new(at(0));
        let Some(Advice::TryFewer(fewer)) = advice(&mut saturation, 8, 8, 0) else { panic!("a trial") };
        saturation.change(8, fewer, true, at(900));
        assert!(matches!(advice(&mut saturation, 8, 4, 1000), Some(Advice::TooFew(_))));
        saturation.change(fewer, 8, false, at(1900));
        saturation.begin();
        assert!(advice(&mut saturation, 8, 8, 5000).is_none(), "the result of the trial is remembered");
        assert_eq!(saturation.busy_milli(), Some(8000), "readings count again");
        assert!(matches!(advice(&mut saturation, 8, 8, 50_000), Some(Advice::TryFewer(_))));
    }

    #[test]
    fn a_larger_limit_that_keeps_no_more_cores_busy_is_too_large() {
        for (cores, is_too_many) in [(2, true), (3, false)] {
            let mut saturation = Saturation::new(at(0));
            saturation.next_trial = at(100_000);
            assert!(advice(&mut saturation, cores, 2, 0).is_none());
            saturation.change(2, 3, true, at(900));
            let advice = advice(&mut saturation, cores, 3, 1000);
            assert_eq!(matches!(advice, Some(Advice::TooMany(limit)) if limit == 2), is_too_many);
        }
    }

    #[test]
    fn a_trial_that_long_polls_do_not_leave_for_ends() {
        let mut saturation = Saturation::new(at(0));
        let Some(Advice::TryFewer(fewer)) = advice(&mut saturation, 1, 8, 0) else { panic!("a trial") };
        saturation.change(8, fewer, true, at(900));
        let mut stays = |millis| saturation.record(Cores::whole(1), 8, fewer, at(millis)).is_none();
        assert!(stays(1000) && stays(2900));
        assert!(matches!(saturation.record(Cores::whole(1), 8, fewer, at(2950)), Some(Advice::TooFew(_))));
    }

    #[test]
    fn readings_do_not_count_while_more_is_in_flight_or_the_limit_is_not_used() {
        let mut saturation = Saturation::new(at(0));
        for (in_flight, limit) in [(8, 2), (1, 2)] {
            let many = (0..50).find_map(|_| saturation.record(Cores::whole(1), in_flight, limit, at(9)));
            assert!(many.is_none() && saturation.busy_milli().is_none(), "{in_flight} of {limit}");
        }
    }
}

//! The over-admission of a limit that many gates share, and its theoretical bound.
//!
//! Both are exported as metrics, so that operators can check the bound against reality.

use super::Domain;
use crate::limit::Limit;
use crate::time::{Moment, Span};

/// The over-admission of one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainOvershoot<'a> {
    /// The name on the wire.
    pub name: &'a [u8],
    /// The number of requests that can be admitted beyond the limit, for the current number of gates and
    /// message delay.
    pub bound: u64,
    /// The largest number that was admitted beyond the limit for one caller in the last minute.
    pub overshoot: u64,
}

/// The largest overshoot of one domain in the current and in the previous half minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overshoot {
    began: Moment,
    now: u64,
    before: u64,
}

const HALF: Span = Span::from_secs(30);

impl Overshoot {
    pub(super) fn note(&mut self, requests: u64, now: Moment) {
        self.turn(now);
        self.now = self.now.max(requests);
    }

    pub(super) fn read(mut self, now: Moment) -> u64 {
        self.turn(now);
        self.now.max(self.before)
    }

    fn turn(&mut self, now: Moment) {
        let past = now.since(self.began);
        if past >= HALF {
            self.before = if past >= HALF + HALF { 0 } else { self.now };
            (self.began, self.now) = (now, 0);
        }
    }
}

/// The number of requests by which a caller exceeds `limit`, whose debt is paid back at `clear`. Requests
/// worth `held` are not forwarded yet.
pub(super) fn ahead(limit: &Limit, clear: Moment, held: Span, now: Moment) -> u64 {
    let Limit::Rate(rate) = limit else { return 0 };
    let (count, period, burst) = rate.parameters();
    let (count, period) = (u128::from(count), u128::from(period.as_nanos().max(1)));
    let whole = u128::from(burst) * period / count;
    let owed = u128::from(clear.since(now + held).as_nanos());
    u64::try_from(owed.saturating_sub(whole).saturating_mul(count) / period).unwrap_or(u64::MAX)
}

/// The over-admission that `gates` gates can cause in `domain` if a message takes `delay` from one gate to
/// all others: `(G-1) * (B + r*D) + G`, for its strictest rate.
pub(super) fn bound(domain: &Domain, gates: usize, delay: Span) -> u64 {
    let gates = gates.max(1) as u128;
    let of = |limit: &Limit| {
        let Limit::Rate(rate) = limit else { return None };
        let (count, period, burst) = rate.parameters();
        let meanwhile =
            (u128::from(delay.as_nanos()) * u128::from(count)).div_ceil(u128::from(period.as_nanos().max(1)));
        Some((gates - 1).saturating_mul(u128::from(burst) + meanwhile) + gates)
    };
    let strictest = domain.limits.iter().filter_map(of).min();
    strictest.map_or(0, |bound| u64::try_from(bound).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rate;

    fn rate() -> Limit {
        Limit::Rate(Rate::new(10, Span::from_secs(1), 20).unwrap())
    }

    #[test]
    fn each_request_beyond_the_burst_counts_as_one_overshoot() {
        let now = Moment::from_millis(1000);
        let clear = |requests: u64| now + Span::from_millis(100 * requests);
        assert_eq!(ahead(&rate(), clear(20), Span::ZERO, now), 0);
        assert_eq!(ahead(&rate(), clear(23), Span::ZERO, now), 3);
        assert_eq!(
            ahead(&rate(), clear(23), Span::from_millis(300), now),
            0,
            "those are held, and not yet let through"
        );
    }

    #[test]
    fn the_bound_is_the_formula() {
        let domain = Domain { name: (*b"d").into(), limits: alloc::vec![rate()] };
        assert_eq!(bound(&domain, 1, Span::from_secs(5)), 1);
        assert_eq!(bound(&domain, 8, Span::from_millis(200)), 7 * (20 + 2) + 8);
    }

    #[test]
    fn an_overshoot_is_remembered_for_a_minute_at_most() {
        let mut overshoot = Overshoot::default();
        overshoot.note(7, Moment::from_millis(1000));
        assert_eq!(overshoot.read(Moment::from_millis(29_000)), 7);
        overshoot.note(2, Moment::from_millis(31_000));
        assert_eq!(overshoot.read(Moment::from_millis(40_000)), 7);
        assert_eq!(overshoot.read(Moment::from_millis(62_000)), 2);
        assert_eq!(overshoot.read(Moment::from_millis(200_000)), 0);
    }
}

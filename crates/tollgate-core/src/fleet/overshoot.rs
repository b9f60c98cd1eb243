//! The overshoot of a limit that many gates share: the number of requests that were admitted beyond it, because each
//! gate decides before the reports of the others arrive.
//!
//! The master exports the measured overshoot and its theoretical bound as metrics, so that operators can compare them.

use super::Domain;
use crate::limit::Limit;
use crate::time::{Moment, Span};

/// The overshoot of one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainOvershoot<'a> {
    /// The name on the wire.
    pub name: &'a [u8],
    /// The number of requests that can be admitted beyond the limit, for the current number of gates and
    /// message delay.
    pub bound: u64,
    /// The largest number of requests that was admitted beyond the limit for one identifier in the last minute.
    pub overshoot: u64,
}

/// The largest overshoot of one domain in the current and in the previous half minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overshoot {
    /// The start of the current half minute.
    began: Moment,
    /// The largest overshoot of the current half minute, in requests.
    current: u64,
    /// That of the previous half minute.
    previous: u64,
}

const HALF_MINUTE: Span = Span::from_secs(30);

impl Overshoot {
    pub(super) fn note(&mut self, requests: u64, now: Moment) {
        self.advance(now);
        self.current = self.current.max(requests);
    }

    pub(super) fn read(mut self, now: Moment) -> u64 {
        self.advance(now);
        self.current.max(self.previous)
    }

    /// Begins a new half minute if the current one is over.
    fn advance(&mut self, now: Moment) {
        let past = now.since(self.began);
        if past >= HALF_MINUTE {
            self.previous = if past >= HALF_MINUTE + HALF_MINUTE { 0 } else { self.current };
            (self.began, self.current) = (now, 0);
        }
    }
}

/// The number of requests by which an identifier whose debt is paid back at `clear` exceeds `limit`. Its last request
/// is held for `held`, so that much of the debt is from requests that are not forwarded yet.
pub(super) fn excess(limit: &Limit, clear: Moment, held: Span, now: Moment) -> u64 {
    let Limit::Rate(rate) = limit else { return 0 };
    let (count, period, burst) = rate.parameters();
    let (count, period) = (u128::from(count), u128::from(period.as_nanos().max(1)));
    let allowed_nanos = u128::from(burst) * period / count;
    let owed_nanos = u128::from(clear.since(now + held).as_nanos());
    u64::try_from(owed_nanos.saturating_sub(allowed_nanos).saturating_mul(count) / period).unwrap_or(u64::MAX)
}

/// The overshoot that `gates` gates can cause in `domain` if a message takes `delay` from one gate to all others:
/// `(G-1) * (B + r*D) + G`, where G is the number of gates, D the delay, B the burst of a rate and r its requests per
/// second. The rate of the domain with the smallest result counts.
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
        assert_eq!(excess(&rate(), clear(20), Span::ZERO, now), 0);
        assert_eq!(excess(&rate(), clear(23), Span::ZERO, now), 3);
        assert_eq!(
            excess(&rate(), clear(23), Span::from_millis(300), now),
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

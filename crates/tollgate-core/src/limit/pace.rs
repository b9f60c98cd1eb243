//! The refill rate of rates and budgets, as an exact fraction.
//!
//! Three requests per second are one every 333,333,333 1/3 nanoseconds. Rounding that would make a limit too
//! loose or too tight for as long as it runs, at a billion per second by a third. [`Pace`] keeps the fraction
//! and [`FineTime`] keeps the remainder, so a limit is exact over years.

use crate::record::Record;
use crate::time::{Moment, Span};

/// The time in which one unit is returned: `nanos / per` nanoseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    nanos: u64,
    per: u32,
    /// The time of one unit, precomputed to avoid a division.
    one: FineTime,
}

/// A time in nanoseconds with a fraction in units of 1/[`Pace::per`]: the moment at which all charges are
/// paid back, or a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FineTime {
    nanos: u64,
    fraction: u32,
}

impl FineTime {
    const NEVER: Self = Self { nanos: u64::MAX, fraction: 0 };

    #[inline]
    pub(super) fn read(record: &impl Record) -> Self {
        Self { nanos: record.word(0), fraction: record.aux() }
    }

    #[inline]
    pub(super) fn write(self, record: &mut impl Record) {
        record.set_word(0, self.nanos);
        record.set_aux(self.fraction);
    }

    #[inline]
    pub(super) const fn at(moment: Moment) -> Self {
        Self { nanos: moment.as_nanos(), fraction: 0 }
    }

    /// Sets `into` to the later of the two, which leaves less room.
    pub(super) fn absorb(into: &mut impl Record, from: &impl Record) {
        Self::read(into).max(Self::read(from)).write(into);
    }

    /// This as a length of time, if it has no fraction.
    pub(super) fn whole(self) -> Option<Span> {
        (self.fraction == 0).then_some(Span::from_nanos(self.nanos))
    }

    /// The last whole moment that is not after this.
    pub(super) fn floor(self) -> Moment {
        Moment::from_nanos(self.nanos)
    }

    /// The moment of a mark, without its fraction.
    pub(super) const fn of_mark(mark: u64) -> Self {
        Self { nanos: mark, fraction: 0 }
    }

    /// The first whole moment that is not before this.
    #[inline]
    pub(super) fn ceil(self) -> Moment {
        Moment::from_nanos(self.nanos.saturating_add(u64::from(self.fraction != 0)))
    }
}

impl Pace {
    /// `units` every `period`; `None` if the fraction does not fit.
    pub(super) fn new(units: u64, period: Span) -> Option<Self> {
        let divisor = gcd(units, period.as_nanos());
        let nanos = period.as_nanos().checked_div(divisor)?;
        let per = u32::try_from(units / divisor).ok()?;
        if nanos == 0 || per == 0 {
            return None;
        }
        let one = FineTime { nanos: nanos / u64::from(per), fraction: (nanos % u64::from(per)) as u32 };
        Some(Self { nanos, per, one })
    }

    /// Nanoseconds per this many units, in lowest terms.
    pub(super) fn fraction(&self) -> (u64, u64) {
        (self.nanos, u64::from(self.per))
    }

    /// The time of one unit, if that is a whole number of nanoseconds. Sums then never have a fraction.
    pub(super) fn one(&self) -> Option<Span> {
        (self.per == 1).then_some(Span::from_nanos(self.nanos))
    }

    /// The time of `units`; `None` if it does not fit.
    pub(super) fn span_of(&self, units: u64) -> Option<FineTime> {
        let total = u128::from(units) * u128::from(self.nanos);
        let nanos = u64::try_from(total / u128::from(self.per)).ok()?;
        Some(FineTime { nanos, fraction: (total % u128::from(self.per)) as u32 })
    }

    /// `from` plus the time of `units`.
    #[inline]
    pub(super) fn later(&self, from: FineTime, units: u64) -> FineTime {
        if units == 1 { self.plus(from, self.one) } else { self.plus(from, self.cost_of(units)) }
    }

    /// `from` minus the time of `units`; never before the origin.
    pub(super) fn earlier(&self, from: FineTime, units: u64) -> FineTime {
        self.minus(from, self.cost_of(units))
    }

    /// The time of `units`, saturating.
    pub(super) fn cost_of(&self, units: u64) -> FineTime {
        self.span_of(units).unwrap_or(FineTime::NEVER)
    }

    /// Refunds `cost` less the part that was paid back since `since`. While `record` is beyond `depth`, which
    /// means that requests are held, only the newest charge is refunded.
    pub(super) fn refund(
        &self,
        record: &mut impl Record,
        (cost, depth): (FineTime, FineTime),
        (since, mark): (Moment, u64),
        now: Moment,
    ) {
        let ahead = FineTime::read(record);
        let left = self.left_of(cost, since, now);
        if ahead <= self.plus(FineTime::at(now), depth) {
            self.minus(ahead, left).write(record);
        } else if ahead.nanos == mark {
            self.minus(ahead, cost).write(record);
        }
    }

    /// The part of `cost` that was not paid back since `since`.
    pub(super) fn left_of(&self, cost: FineTime, since: Moment, now: Moment) -> FineTime {
        self.minus(cost, FineTime { nanos: now.since(since).as_nanos(), fraction: 0 })
    }

    #[inline]
    pub(super) fn plus(&self, a: FineTime, b: FineTime) -> FineTime {
        let fraction = u64::from(a.fraction) + u64::from(b.fraction);
        let carry = fraction >= u64::from(self.per);
        match a.nanos.checked_add(b.nanos).and_then(|nanos| nanos.checked_add(u64::from(carry))) {
            Some(nanos) => FineTime { nanos, fraction: (fraction - u64::from(carry) * u64::from(self.per)) as u32 },
            None => FineTime::NEVER,
        }
    }

    #[inline]
    pub(super) fn minus(&self, a: FineTime, b: FineTime) -> FineTime {
        if a <= b {
            return FineTime { nanos: 0, fraction: 0 };
        }
        let borrow = a.fraction < b.fraction;
        let fraction = u64::from(a.fraction) + u64::from(borrow) * u64::from(self.per) - u64::from(b.fraction);
        FineTime { nanos: a.nanos - b.nanos - u64::from(borrow), fraction: fraction as u32 }
    }

    /// The number of whole units between `from` and `to`; zero if `to` is earlier.
    #[inline]
    pub(super) fn units_between(&self, from: FineTime, to: FineTime) -> u64 {
        let span = self.minus(to, from);
        if self.per == 1 {
            return span.nanos / self.nanos;
        }
        let total = u128::from(span.nanos) * u128::from(self.per) + u128::from(span.fraction);
        match u64::try_from(total) {
            Ok(total) => total / self.nanos,
            Err(_) => u64::try_from(total / u128::from(self.nanos)).unwrap_or(u64::MAX),
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_a_nanosecond_is_never_lost() {
        let pace = Pace::new(3, Span::from_nanos(10)).unwrap();
        let mut ahead = FineTime::at(Moment::ZERO);
        for _ in 0..3_000_000 {
            ahead = pace.later(ahead, 1);
        }
        assert_eq!(ahead, FineTime::at(Moment::from_nanos(10_000_000)));
        assert_eq!(pace.units_between(FineTime::at(Moment::ZERO), ahead), 3_000_000);
        assert_eq!(pace.earlier(ahead, 3_000_000), FineTime::at(Moment::ZERO));
    }

    #[test]
    fn sums_saturate_at_the_end_of_time() {
        let pace = Pace::new(1, Span::from_secs(86_400)).unwrap();
        assert_eq!(pace.later(FineTime::at(Moment::MAX), 5), FineTime::NEVER);
        assert_eq!(pace.span_of(u64::MAX), None);
    }
}

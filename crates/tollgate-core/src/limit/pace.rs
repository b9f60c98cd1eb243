//! How fast a limit refills, as an exact fraction: the core of rate and budget.
//!
//! Three requests a second are one every 333,333,333 and a third nanoseconds. Rounding that makes a limit too loose or too tight for as
//! long as it runs, and at a billion a second by a third. A [`Pace`] keeps the fraction, and an [`Ahead`] keeps the rest that
//! is left over, so a limit is exact over years.

use crate::record::Record;
use crate::time::{Moment, Span};

/// The time that one unit takes to come back: `nanos / per` nanoseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    nanos: u64,
    per: u32,
    /// What one unit takes: the common case needs no division.
    one: Ahead,
}

/// A moment with a fraction of a nanosecond, in parts of [`Pace::per`]: when all that was spent is paid back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ahead {
    nanos: u64,
    fraction: u32,
}

impl Ahead {
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

    /// Makes `into` the later of the two: the one that leaves less.
    pub(super) fn absorb(into: &mut impl Record, from: &impl Record) {
        Self::read(into).max(Self::read(from)).write(into);
    }

    /// As a length of time, if it is a whole one.
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
    /// `units` every `period`, or `None` when the fraction does not fit.
    pub(super) fn new(units: u64, period: Span) -> Option<Self> {
        let divisor = gcd(units, period.as_nanos());
        let nanos = period.as_nanos().checked_div(divisor)?;
        let per = u32::try_from(units / divisor).ok()?;
        if nanos == 0 || per == 0 {
            return None;
        }
        let one = Ahead { nanos: nanos / u64::from(per), fraction: (nanos % u64::from(per)) as u32 };
        Some(Self { nanos, per, one })
    }

    /// How long one unit takes, if that is a whole number of nanoseconds: then sums never have a rest.
    pub(super) fn one(&self) -> Option<Span> {
        (self.per == 1).then_some(Span::from_nanos(self.nanos))
    }

    /// How long `units` take, or `None` when that is longer than time.
    pub(super) fn span_of(&self, units: u64) -> Option<Ahead> {
        let total = u128::from(units) * u128::from(self.nanos);
        let nanos = u64::try_from(total / u128::from(self.per)).ok()?;
        Some(Ahead { nanos, fraction: (total % u128::from(self.per)) as u32 })
    }

    /// `from` and `units` more.
    #[inline]
    pub(super) fn later(&self, from: Ahead, units: u64) -> Ahead {
        if units == 1 { self.plus(from, self.one) } else { self.plus(from, self.cost_of(units)) }
    }

    /// `from` and `units` less; never before the origin.
    pub(super) fn earlier(&self, from: Ahead, units: u64) -> Ahead {
        self.minus(from, self.cost_of(units))
    }

    /// How long `units` take, up to the end of time.
    pub(super) fn cost_of(&self, units: u64) -> Ahead {
        self.span_of(units).unwrap_or(Ahead::NEVER)
    }

    /// Gives `cost` back, less what time has paid back of it since `since`. While `record` is beyond `depth`, which means that requests are
    /// held, only if its charge is the newest.
    pub(super) fn refund(
        &self,
        record: &mut impl Record,
        (cost, depth): (Ahead, Ahead),
        (since, mark): (Moment, u64),
        now: Moment,
    ) {
        let ahead = Ahead::read(record);
        let left = self.left_of(cost, since, now);
        if ahead <= self.plus(Ahead::at(now), depth) {
            self.minus(ahead, left).write(record);
        } else if ahead.nanos == mark {
            self.minus(ahead, cost).write(record);
        }
    }

    /// What time has not paid back of `cost` since `since`.
    pub(super) fn left_of(&self, cost: Ahead, since: Moment, now: Moment) -> Ahead {
        self.minus(cost, Ahead { nanos: now.since(since).as_nanos(), fraction: 0 })
    }

    #[inline]
    pub(super) fn plus(&self, a: Ahead, b: Ahead) -> Ahead {
        let fraction = u64::from(a.fraction) + u64::from(b.fraction);
        let carry = fraction >= u64::from(self.per);
        match a.nanos.checked_add(b.nanos).and_then(|nanos| nanos.checked_add(u64::from(carry))) {
            Some(nanos) => Ahead { nanos, fraction: (fraction - u64::from(carry) * u64::from(self.per)) as u32 },
            None => Ahead::NEVER,
        }
    }

    #[inline]
    pub(super) fn minus(&self, a: Ahead, b: Ahead) -> Ahead {
        if a <= b {
            return Ahead { nanos: 0, fraction: 0 };
        }
        let borrow = a.fraction < b.fraction;
        let fraction = u64::from(a.fraction) + u64::from(borrow) * u64::from(self.per) - u64::from(b.fraction);
        Ahead { nanos: a.nanos - b.nanos - u64::from(borrow), fraction: fraction as u32 }
    }

    /// How many whole units fit between `from` and `to`; none when `to` is earlier.
    #[inline]
    pub(super) fn units_between(&self, from: Ahead, to: Ahead) -> u64 {
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
        let mut ahead = Ahead::at(Moment::ZERO);
        for _ in 0..3_000_000 {
            ahead = pace.later(ahead, 1);
        }
        assert_eq!(ahead, Ahead::at(Moment::from_nanos(10_000_000)));
        assert_eq!(pace.units_between(Ahead::at(Moment::ZERO), ahead), 3_000_000);
        assert_eq!(pace.earlier(ahead, 3_000_000), Ahead::at(Moment::ZERO));
    }

    #[test]
    fn sums_saturate_at_the_end_of_time() {
        let pace = Pace::new(1, Span::from_secs(86_400)).unwrap();
        assert_eq!(pace.later(Ahead::at(Moment::MAX), 5), Ahead::NEVER);
        assert_eq!(pace.span_of(u64::MAX), None);
    }
}

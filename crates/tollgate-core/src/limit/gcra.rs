//! The arithmetic of rates and budgets: the generic cell rate algorithm (GCRA), in exact fractions.
//!
//! A unit is a request in a rate, and a nanosecond of CPU time in a budget. The state is one moment: the time at which
//! all charged units are paid back. A charge moves it forward by the time that its units take to be paid back.
//!
//! Three requests per second are one every 333,333,333 1/3 nanoseconds. Rounding that would make a limit too
//! loose or too tight for as long as it runs, and would be wrong by a third for 750 million per second (1 1/3 ns).
//! [`Gcra`] keeps the fraction and [`FineTime`] keeps the remainder, so a limit is exact over years.

use super::{Charge, LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// Units that are paid back at a steady rate, and a burst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gcra {
    /// One unit is paid back in `nanos / per` nanoseconds, in lowest terms.
    nanos: u64,
    per: u32,
    /// The time of one unit, precomputed to avoid a division.
    one: FineTime,
    /// The time in which a full burst is paid back.
    depth: FineTime,
}

/// A time in nanoseconds with a fraction in units of 1/[`Gcra::per`]: the moment at which all charges are
/// paid back, or a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FineTime {
    nanos: u64,
    fraction: u32,
}

impl FineTime {
    const ZERO: Self = Self::at(Moment::ZERO);
    const NEVER: Self = Self::at(Moment::MAX);

    #[inline]
    pub(super) fn read(record: &impl Record) -> Self {
        Self { nanos: record.word(0), fraction: record.aux() }
    }

    #[inline]
    fn write(self, record: &mut impl Record) {
        record.set_word(0, self.nanos);
        record.set_aux(self.fraction);
    }

    #[inline]
    pub(super) const fn at(moment: Moment) -> Self {
        Self { nanos: moment.as_nanos(), fraction: 0 }
    }

    /// Makes `record` paid back no earlier than at `time`, which leaves less room.
    pub(super) fn raise(record: &mut impl Record, time: Self) {
        Self::read(record).max(time).write(record);
    }

    /// The last whole moment that is not after this.
    fn floor(self) -> Moment {
        Moment::from_nanos(self.nanos)
    }

    /// The first whole moment that is not before this.
    #[inline]
    pub(super) fn ceil(self) -> Moment {
        Moment::from_nanos(self.nanos.saturating_add(u64::from(self.fraction != 0)))
    }
}

impl Gcra {
    /// `units` every `period`, at most `burst` at once.
    pub(super) fn new(units: u64, period: Span, burst: u64) -> Result<Self, LimitError> {
        if units == 0 || period.is_zero() || burst == 0 {
            return Err(LimitError::Zero);
        }
        let divisor = gcd(units, period.as_nanos());
        let nanos = period.as_nanos() / divisor;
        let per = u32::try_from(units / divisor).map_err(|_| LimitError::TooFine)?;
        let one = FineTime { nanos: nanos / u64::from(per), fraction: (nanos % u64::from(per)) as u32 };
        let mut gcra = Self { nanos, per, one, depth: FineTime::ZERO };
        gcra.depth = gcra.span_of(burst).ok_or(LimitError::TooLong)?;
        Ok(gcra)
    }

    /// Nanoseconds per this many units, in lowest terms.
    pub(super) fn pace(&self) -> (u64, u64) {
        (self.nanos, u64::from(self.per))
    }

    /// The time of one unit and that of the burst, if one unit takes a whole number of nanoseconds.
    pub(super) fn whole_interval(&self) -> Option<(Span, Span)> {
        (self.per == 1).then_some((Span::from_nanos(self.nanos), Span::from_nanos(self.depth.nanos)))
    }

    /// Whether records need a fraction, because one unit takes no whole number of nanoseconds.
    pub(super) fn uses_aux(&self) -> bool {
        self.per != 1
    }

    /// Whether `units` fit into the burst. A budget asks with 0 units, which fit unless the debt exceeds the burst.
    #[inline]
    pub(super) fn room(&self, record: &impl Record, units: u64, now: Moment) -> Room {
        let spent = self.spent(record, units, now);
        if spent <= self.plus(FineTime::at(now), self.depth) {
            Room::Now
        } else {
            Room::From(self.minus(spent, self.depth).ceil())
        }
    }

    #[inline]
    pub(super) fn charge(&self, record: &mut impl Record, units: u64, now: Moment) {
        self.spent(record, units, now).write(record);
    }

    /// The time at which all charges are paid back if `units` are charged at `now`.
    #[inline]
    fn spent(&self, record: &impl Record, units: u64, now: Moment) -> FineTime {
        self.plus(FineTime::read(record).max(FineTime::at(now)), self.cost_of(units))
    }

    /// Refunds `units` less the part that was paid back since they were charged; `overdraft` is as in
    /// [`paid_since`](Self::paid_since). While the debt exceeds the burst, which means that requests are held, only the
    /// newest charge is refunded.
    pub(super) fn refund(
        &self,
        record: &mut impl Record,
        (units, overdraft): (u64, u64),
        charged: Charge,
        now: Moment,
    ) {
        let (paid_at, cost) = (FineTime::read(record), self.cost_of(units));
        if paid_at <= self.plus(FineTime::at(now), self.depth) {
            let left = self.left_of(cost, self.paid_since(overdraft, charged), now);
            self.minus(paid_at, left).write(record);
        } else if paid_at.nanos == charged.mark {
            self.minus(paid_at, cost).write(record);
        }
    }

    /// Refunds `surplus` units of a budget's charge of `reserved` units, for a request that cost less than predicted.
    /// This happens even while requests are held; otherwise every request of a busy key would cost as much as the most
    /// expensive prediction. Held requests may then be forwarded earlier, by at most the hold time.
    pub(super) fn refund_surplus(
        &self,
        record: &mut impl Record,
        (reserved, surplus): (u64, u64),
        charged: Charge,
        now: Moment,
    ) {
        let (paid_at, surplus) = (FineTime::read(record), self.cost_of(surplus));
        let is_newest = paid_at.nanos == charged.mark;
        let left = if is_newest { surplus } else { self.left_of(surplus, self.paid_since(reserved, charged), now) };
        self.minus(paid_at, left).write(record);
    }

    /// The time from which a charge is paid back: when it was made, or, for a held request, when it was forwarded. A
    /// request is forwarded as soon as the debt fits into the burst, except for the `overdraft` units of its own charge
    /// that may exceed the burst: none in a rate, and the whole charge in a budget, which needs room for 0 units only.
    pub(super) fn paid_since(&self, overdraft: u64, charged: Charge) -> Moment {
        let must_fit = self.minus(FineTime::at(Moment::from_nanos(charged.mark)), self.cost_of(overdraft));
        self.minus(must_fit, self.depth).floor().max(charged.at)
    }

    /// The number of a rate's `units` that a refund at `now` returns at most, rounded up.
    pub(super) fn returnable(&self, units: u64, charged: Charge, now: Moment) -> u64 {
        let left = self.left_of(self.cost_of(units), self.paid_since(0, charged), now);
        let whole = self.units_between(FineTime::ZERO, left);
        let has_rest = self.cost_of(whole) < left;
        whole.saturating_add(u64::from(has_rest)).min(units)
    }

    /// The time at which all debt is paid back if there is room for `units` from `next` on and no earlier.
    pub(super) fn clear_if_next(&self, units: u64, next: Moment) -> Moment {
        self.minus(self.plus(FineTime::at(next), self.depth), self.cost_of(units)).ceil()
    }

    /// The state of a record whose next request needs room for `units`: 1 in a rate, 0 in a budget.
    #[inline]
    pub(super) fn info(&self, record: &impl Record, units: u64, now: Moment) -> LimitInfo {
        let paid_at = FineTime::read(record).max(FineTime::at(now));
        let remaining = self.units_between(paid_at, self.plus(FineTime::at(now), self.depth));
        let reset = if remaining == 0 { self.room(record, units, now).wait(now) } else { Span::ZERO };
        LimitInfo { remaining, reset, clear: paid_at.ceil().since(now) }
    }

    /// The time in which `units` are paid back; `None` if it does not fit into 64 bits.
    fn span_of(&self, units: u64) -> Option<FineTime> {
        let total = u128::from(units) * u128::from(self.nanos);
        let nanos = u64::try_from(total / u128::from(self.per)).ok()?;
        Some(FineTime { nanos, fraction: (total % u128::from(self.per)) as u32 })
    }

    /// The time in which `units` are paid back, saturating.
    #[inline]
    fn cost_of(&self, units: u64) -> FineTime {
        match units {
            0 => FineTime::ZERO,
            1 => self.one,
            _ => self.span_of(units).unwrap_or(FineTime::NEVER),
        }
    }

    /// The part of `cost` that was not paid back since `since`.
    fn left_of(&self, cost: FineTime, since: Moment, now: Moment) -> FineTime {
        self.minus(cost, FineTime { nanos: now.since(since).as_nanos(), fraction: 0 })
    }

    #[inline]
    fn plus(&self, a: FineTime, b: FineTime) -> FineTime {
        let fraction = u64::from(a.fraction) + u64::from(b.fraction);
        let carry = fraction >= u64::from(self.per);
        match a.nanos.checked_add(b.nanos).and_then(|nanos| nanos.checked_add(u64::from(carry))) {
            Some(nanos) => FineTime { nanos, fraction: (fraction - u64::from(carry) * u64::from(self.per)) as u32 },
            None => FineTime::NEVER,
        }
    }

    /// `a - b`, but never before the origin.
    #[inline]
    fn minus(&self, a: FineTime, b: FineTime) -> FineTime {
        if a <= b {
            return FineTime::ZERO;
        }
        let borrow = a.fraction < b.fraction;
        let fraction = u64::from(a.fraction) + u64::from(borrow) * u64::from(self.per) - u64::from(b.fraction);
        FineTime { nanos: a.nanos - b.nanos - u64::from(borrow), fraction: fraction as u32 }
    }

    /// The number of whole units between `from` and `to`; zero if `to` is earlier.
    #[inline]
    fn units_between(&self, from: FineTime, to: FineTime) -> u64 {
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
        let gcra = Gcra::new(3, Span::from_nanos(10), 1).unwrap();
        let mut paid_at = FineTime::ZERO;
        for _ in 0..3_000_000 {
            paid_at = gcra.plus(paid_at, gcra.cost_of(1));
        }
        assert_eq!(paid_at, FineTime::at(Moment::from_nanos(10_000_000)));
        assert_eq!(gcra.units_between(FineTime::ZERO, paid_at), 3_000_000);
        assert_eq!(gcra.minus(paid_at, gcra.cost_of(3_000_000)), FineTime::ZERO);
    }

    #[test]
    fn sums_saturate_at_the_end_of_time() {
        let gcra = Gcra::new(1, Span::from_secs(86_400), 1).unwrap();
        assert_eq!(gcra.plus(FineTime::NEVER, gcra.cost_of(5)), FineTime::NEVER);
        assert_eq!(gcra.span_of(u64::MAX), None);
    }
}

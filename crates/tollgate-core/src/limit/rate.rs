//! A number of requests per period, with a burst: Smockron's limit, as a generic cell rate algorithm (GCRA).
//!
//! The state is the moment at which all charges are paid back. Admissions move it forward, so debt is kept
//! until it is repaid and the burst is exact: N at once, then one per interval.

use super::pace::{FineTime, Pace};
use super::{Charge, LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// `count` requests per `period` on average, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: Span,
    burst: u64,
    pace: Pace,
    /// The time that a full burst takes to recover.
    depth: FineTime,
}

impl Rate {
    /// A limit of `count` per `period` with bursts of `burst`.
    pub fn new(count: u64, period: Span, burst: u64) -> Result<Self, LimitError> {
        if count == 0 || period.is_zero() || burst == 0 {
            return Err(LimitError::Zero);
        }
        let pace = Pace::new(count, period).ok_or(LimitError::TooFine)?;
        let depth = pace.span_of(burst).ok_or(LimitError::TooLong)?;
        Ok(Self { count, period, burst, pace, depth })
    }

    /// The number of requests per period, the period, and the burst.
    pub const fn parameters(&self) -> (u64, Span, u64) {
        (self.count, self.period, self.burst)
    }

    /// The interval and the recovery time of the burst, if both are whole nanoseconds.
    pub(crate) fn whole_interval(&self) -> Option<(Span, Span)> {
        Some((self.pace.one()?, self.depth.whole()?))
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Whether the interval is no whole number of nanoseconds, so that records need a fraction.
    pub(super) fn uses_aux(&self) -> bool {
        self.pace.one().is_none()
    }

    #[inline]
    pub(super) fn room(&self, record: &impl Record, count: u64, now: Moment) -> Room {
        if count > self.burst {
            return Room::Never;
        }
        let now = FineTime::at(now);
        let spent = self.pace.later(FineTime::read(record).max(now), count);
        if spent <= self.pace.plus(now, self.depth) {
            Room::Now
        } else {
            Room::From(self.pace.minus(spent, self.depth).ceil())
        }
    }

    #[inline]
    pub(super) fn charge(&self, record: &mut impl Record, count: u64, now: Moment) {
        self.pace.later(FineTime::read(record).max(FineTime::at(now)), count).write(record);
    }

    pub(super) fn refund(&self, record: &mut impl Record, count: u64, charged: Charge, now: Moment) {
        let cost = self.pace.cost_of(count);
        self.pace.refund(record, (cost, self.depth), (self.paid_since(charged), charged.mark), now);
    }

    /// The time from which a charge is paid back: when it was made, or when a held request was forwarded, which is when
    /// its charge is within the burst.
    pub(super) fn paid_since(&self, charged: Charge) -> Moment {
        self.pace.minus(FineTime::of_mark(charged.mark), self.depth).floor().max(charged.at)
    }

    /// The number of requests that a refund at `now` returns at most, rounded up.
    pub(super) fn returnable(&self, count: u64, charged: Charge, now: Moment) -> u64 {
        let left = self.pace.left_of(self.pace.cost_of(count), self.paid_since(charged), now);
        let nothing = FineTime::at(Moment::ZERO);
        let whole = self.pace.units_between(nothing, left);
        let has_rest = self.pace.cost_of(whole) < left;
        whole.saturating_add(u64::from(has_rest)).min(count)
    }

    /// The time at which all debt is paid back if there is room for one more request from `next` on and no earlier.
    pub(super) fn clear_if_next(&self, next: Moment) -> Moment {
        self.pace.earlier(self.pace.plus(FineTime::at(next), self.depth), 1).ceil()
    }

    #[inline]
    pub(super) fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        let ahead = FineTime::read(record).max(FineTime::at(now));
        let remaining = self.pace.units_between(ahead, self.pace.plus(FineTime::at(now), self.depth));
        let reset = if remaining == 0 { self.room(record, 1, now).wait(now) } else { Span::ZERO };
        LimitInfo { remaining, reset, clear: ahead.ceil().since(now) }
    }

    #[inline]
    pub(super) fn clear_at(&self, record: &impl Record) -> Moment {
        FineTime::read(record).ceil()
    }
}

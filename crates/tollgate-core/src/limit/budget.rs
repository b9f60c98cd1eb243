//! CPU-seconds per second: Tempomat's limit.
//!
//! The cost of a request is known only afterwards, so the credit may become negative. A key is admitted
//! unless it is in debt, and its debt is repaid at the rate of its share before the next admission. The state
//! is the moment at which the credit is full again.

use super::pace::{FineTime, Pace};
use super::{Charge, LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// Credit that grows at a fraction of a core, up to `burst` of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    millionths: u32,
    burst: Span,
    pace: Pace,
    /// The time that a full burst takes to recover.
    depth: FineTime,
}

const MILLION: u64 = 1_000_000;

impl Budget {
    /// A budget of `millionths` of a core, with a credit of at most `burst` of CPU time.
    pub fn new(millionths: u32, burst: Span) -> Result<Self, LimitError> {
        if millionths == 0 || burst.is_zero() {
            return Err(LimitError::Zero);
        }
        let pace = Pace::new(u64::from(millionths), Span::from_nanos(MILLION)).ok_or(LimitError::TooFine)?;
        let depth = pace.span_of(burst.as_nanos()).ok_or(LimitError::TooLong)?;
        Ok(Self { millionths, burst, pace, depth })
    }

    /// Millionths of a core, and the burst in CPU time.
    pub const fn parameters(&self) -> (u32, Span) {
        (self.millionths, self.burst)
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// How long it takes to repay this much CPU time.
    pub fn time_of(&self, cpu: Span) -> Span {
        let nanos = u128::from(cpu.as_nanos()) * u128::from(MILLION) / u128::from(self.millionths);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(super) fn uses_aux(&self) -> bool {
        self.pace.one().is_none()
    }

    #[inline]
    pub(super) fn room(&self, record: &impl Record, now: Moment) -> Room {
        let ahead = FineTime::read(record);
        if ahead <= self.pace.plus(FineTime::at(now), self.depth) {
            Room::Now
        } else {
            Room::From(self.pace.minus(ahead, self.depth).ceil())
        }
    }

    #[inline]
    pub(super) fn charge(&self, record: &mut impl Record, cpu: Span, now: Moment) {
        self.pace.later(FineTime::read(record).max(FineTime::at(now)), cpu.as_nanos()).write(record);
    }

    pub(super) fn refund(&self, record: &mut impl Record, cpu: Span, charged: Charge, now: Moment) {
        let cost = self.pace.cost_of(cpu.as_nanos());
        self.pace.refund(record, (cost, self.depth), (self.paid_since(cpu, charged), charged.mark), now);
    }

    /// Refunds the unused part of `reserved`. This happens even while requests are held; otherwise every
    /// request of a busy key would cost as much as the most expensive prediction. Held requests may then be
    /// forwarded earlier, by at most the hold time.
    pub(super) fn give_back_surplus(
        &self,
        record: &mut impl Record,
        (reserved, actual): (Span, Span),
        charged: Charge,
        now: Moment,
    ) {
        let ahead = FineTime::read(record);
        let surplus = self.pace.cost_of(reserved.as_nanos().saturating_sub(actual.as_nanos()));
        let is_newest = ahead.floor().as_nanos() == charged.mark;
        let since = self.paid_since(reserved, charged);
        let left = if is_newest { surplus } else { self.pace.left_of(surplus, since, now) };
        self.pace.minus(ahead, left).write(record);
    }

    /// A held request is forwarded when its own charge is the only debt.
    pub(super) fn paid_since(&self, reserved: Span, charged: Charge) -> Moment {
        let before = self.pace.earlier(FineTime::of_mark(charged.mark), reserved.as_nanos());
        self.pace.minus(before, self.depth).floor().max(charged.at)
    }

    pub(super) fn clear_if_next(&self, next: Moment) -> Moment {
        self.pace.plus(FineTime::at(next), self.depth).ceil()
    }

    /// The remaining quota is the credit in milliseconds of CPU time.
    #[inline]
    pub(super) fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        let ahead = FineTime::read(record).max(FineTime::at(now));
        let credit = self.pace.units_between(ahead, self.pace.plus(FineTime::at(now), self.depth));
        LimitInfo {
            remaining: credit / MILLION,
            reset: self.room(record, now).wait(now),
            clear: ahead.ceil().since(now),
        }
    }

    #[inline]
    pub(super) fn clear_at(&self, record: &impl Record) -> Moment {
        FineTime::read(record).ceil()
    }
}

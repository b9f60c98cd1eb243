//! A leaky bucket: each request fills it by one, and a fixed number of requests, a *drip*, leaks at a fixed interval.
//! It is the limit of Sharkey, a social network server.
//!
//! Sharkey keeps a counter and a timestamp, which drift apart. Here both follow from the state, which is one moment, at
//! which the bucket will be empty, and the amount by which the last drip will be less than a full one. The counter is
//! the number of drips still to come times the drip, less that missing part. The timestamp therefore moves by whole
//! intervals only, for any drip size.

use super::{Charge, LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// Room for `size` requests, of which `drip` leak every `every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    size: u32,
    drip: u32,
    every: Span,
}

/// The state of a bucket at some moment.
struct Fill {
    empty_at: Moment,
    /// Drips until the bucket is empty.
    drips: u64,
    /// Requests in the bucket.
    count: u64,
}

impl Bucket {
    /// A bucket of `size` that leaks `drip` every `every`.
    pub fn new(size: u32, drip: u32, every: Span) -> Result<Self, LimitError> {
        if size == 0 || drip == 0 || every.is_zero() {
            return Err(LimitError::Zero);
        }
        if every.as_nanos().checked_mul(u64::from(size.div_ceil(drip))).is_none() {
            return Err(LimitError::TooLong);
        }
        Ok(Self { size, drip, every })
    }

    /// Size, drip, and the time between drips.
    pub const fn parameters(&self) -> (u32, u32, Span) {
        (self.size, self.drip, self.every)
    }

    /// The time between drips and the time that a full bucket takes to leak, if it leaks one request at a
    /// time.
    pub(crate) fn whole_interval(&self) -> Option<(Span, Span)> {
        (self.drip == 1).then_some((self.every, self.every.times(u64::from(self.size))))
    }

    /// Whether records need the missing part of the last drip, which is in [`Record::aux`].
    pub(super) fn uses_aux(&self) -> bool {
        self.drip != 1
    }

    #[inline]
    fn fill(&self, record: &impl Record, now: Moment) -> Fill {
        let empty_at = Moment::from_nanos(record.word(0));
        let drips = empty_at.since(now).as_nanos().div_ceil(self.every.as_nanos());
        let count = drips.saturating_mul(u64::from(self.drip)).saturating_sub(u64::from(record.aux()));
        Fill { empty_at, drips, count }
    }

    #[inline]
    pub(super) fn room(&self, record: &impl Record, count: u64, now: Moment) -> Room {
        if count > u64::from(self.size) {
            return Room::Never;
        }
        self.room_in(&self.fill(record, now), count)
    }

    #[inline]
    fn room_in(&self, fill: &Fill, count: u64) -> Room {
        let over = fill.count.saturating_add(count).saturating_sub(u64::from(self.size));
        if over == 0 {
            return Room::Now;
        }
        let drips_left = fill.drips.saturating_sub(over.div_ceil(u64::from(self.drip)));
        Room::From(fill.empty_at.before(self.every.times(drips_left)))
    }

    #[inline]
    pub(super) fn charge(&self, record: &mut impl Record, count: u64, now: Moment) {
        let fill = self.fill(record, now);
        // The period of an empty bucket starts with its first request.
        let empty_at = if fill.drips == 0 { now } else { fill.empty_at };
        self.store(record, fill.count.saturating_add(count), empty_at, fill.drips);
    }

    /// As [`Limit::mark`](super::Limit::mark). Charges that leak with the same drip have the same `empty_at`; the
    /// missing part of the drip distinguishes them.
    #[inline]
    pub(super) fn mark(&self, record: &impl Record) -> u64 {
        record.word(0).saturating_sub(u64::from(record.aux()))
    }

    pub(super) fn refund(&self, record: &mut impl Record, count: u64, charged: Charge, now: Moment) {
        let fill = self.fill(record, now);
        if fill.drips == 0 {
            return;
        }
        if fill.count > u64::from(self.size) {
            // Requests are held: only the newest charge can be refunded.
            if self.mark(record) == charged.mark {
                self.store(record, fill.count.saturating_sub(count), fill.empty_at, fill.drips);
            }
        } else if self.drip == 1 {
            // A bucket with a drip of one is treated as a rate, which is paid back evenly.
            let cost = self.every.times(count).as_nanos();
            let paid = now.since(self.paid_since(charged)).as_nanos();
            record.set_word(0, fill.empty_at.before(Span::from_nanos(cost.saturating_sub(paid))).as_nanos());
        } else {
            let drips_then = fill.empty_at.since(charged.at).as_nanos().div_ceil(self.every.as_nanos());
            let paid = drips_then.saturating_sub(fill.drips).saturating_mul(u64::from(self.drip));
            let left = count.saturating_sub(paid);
            self.store(record, fill.count.saturating_sub(left), fill.empty_at, fill.drips);
        }
    }

    /// The time from which a charge is paid back: when it was made, or when a held request was forwarded, which is when
    /// its charge fits into the bucket. With larger drips, always the time of the charge.
    pub(super) fn paid_since(&self, charged: Charge) -> Moment {
        if self.drip > 1 {
            return charged.at;
        }
        Moment::from_nanos(charged.mark).before(self.every.times(u64::from(self.size))).max(charged.at)
    }

    /// Changes the number of requests to `count` in a bucket that would be empty at `empty_at`, after `drips` drips.
    #[inline]
    fn store(&self, record: &mut impl Record, count: u64, empty_at: Moment, drips: u64) {
        let drip = u64::from(self.drip);
        let drips_new = count.div_ceil(drip);
        let empty_at = if drips_new >= drips {
            empty_at + self.every.times(drips_new - drips)
        } else {
            empty_at.before(self.every.times(drips - drips_new))
        };
        record.set_word(0, empty_at.as_nanos());
        record.set_aux(drips_new.saturating_mul(drip).saturating_sub(count) as u32);
    }

    #[inline]
    pub(super) fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        let fill = self.fill(record, now);
        LimitInfo {
            remaining: u64::from(self.size).saturating_sub(fill.count),
            reset: self.room_in(&fill, 1).wait(now),
            clear: fill.empty_at.since(now),
        }
    }

    /// Of two buckets, the one that is empty later may contain less now, because of the missing part of its last drip.
    /// The difference is less than a whole drip, so it matters only if both are empty within one interval.
    pub(super) fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        let (ours, theirs) = (self.clear_at(into), self.clear_at(from));
        let missing = if theirs >= ours + self.every {
            from.aux()
        } else if ours >= theirs + self.every {
            into.aux()
        } else {
            into.aux().min(from.aux())
        };
        into.set_word(0, ours.max(theirs).as_nanos());
        into.set_aux(missing);
    }

    #[inline]
    pub(super) fn clear_at(&self, record: &impl Record) -> Moment {
        Moment::from_nanos(record.word(0))
    }
}

//! A limit on the concurrent requests of one key. Its state is their number, in [`Record::aux`].

use super::{LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// At most `max` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    max: u32,
}

impl InFlight {
    /// At most `max` concurrent requests of a key.
    pub fn new(max: u32) -> Result<Self, LimitError> {
        if max == 0 { Err(LimitError::Zero) } else { Ok(Self { max }) }
    }

    /// The maximum of concurrent requests.
    pub const fn max(&self) -> u32 {
        self.max
    }

    pub(super) fn room(&self, record: &impl Record) -> Room {
        if record.aux() < self.max { Room::Now } else { Room::OnRelease }
    }

    /// A request is in flight once, whatever its count; a toll with a count of 0 is not in flight.
    pub(super) fn charge(&self, record: &mut impl Record, count: u64) {
        record.set_aux(record.aux().saturating_add(u32::from(count > 0)));
    }

    /// Reverts [`charge`](Self::charge) when the request ends.
    pub(super) fn release(&self, record: &mut impl Record, count: u64) {
        record.set_aux(record.aux().saturating_sub(u32::from(count > 0)));
    }

    pub(super) fn info(&self, record: &impl Record) -> LimitInfo {
        let remaining = u64::from(self.max.saturating_sub(record.aux()));
        LimitInfo { remaining, reset: Span::ZERO, clear: Span::ZERO }
    }

    pub(super) fn absorb(into: &mut impl Record, from: &impl Record) {
        into.set_aux(into.aux().max(from.aux()));
    }

    /// A key with requests in flight has no time at which it is clear without an event.
    pub(super) fn clear_at(&self, record: &impl Record) -> Moment {
        if record.aux() == 0 { Moment::ZERO } else { Moment::MAX }
    }
}

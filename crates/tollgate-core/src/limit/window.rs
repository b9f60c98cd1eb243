//! A maximum number of requests in any window of time, and a ceiling. During the warm-up of a rule, in which a fleet of
//! devices reconnects after a restart of the gate, only the ceiling applies. It is the limit of ScreenTinker, a
//! server for such devices.
//!
//! The state is a log of the times of admitted requests, in a ring. Refused requests are not recorded: the announced
//! retry time would be wrong if a client that waits found the window still full of its own refusals.

use super::{Charge, LimitError, LimitInfo, Room};
use crate::record::Record;
use crate::time::{Moment, Span};

/// At most `max` requests in any window of length `per`; during a warm-up, at most `ceiling`, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    max: u32,
    per: Span,
    ceiling: Option<u32>,
}

/// The longest log that a record can hold: its length is stored in 16 bits.
const LOG_MAX: u32 = u16::MAX as u32;

/// The start and the length of the ring, stored in [`Record::aux`].
#[derive(Clone, Copy)]
struct Ring {
    oldest: usize,
    length: usize,
}

impl Ring {
    fn read(record: &impl Record) -> Self {
        Self { oldest: (record.aux() >> 16) as usize, length: (record.aux() & 0xffff) as usize }
    }

    fn write(self, record: &mut impl Record) {
        record.set_aux(((self.oldest as u32) << 16) | self.length as u32);
    }
}

impl Window {
    /// A window of `per` with room for `max`, and an optional ceiling.
    pub fn new(max: u32, per: Span, ceiling: Option<u32>) -> Result<Self, LimitError> {
        if max == 0 || per.is_zero() || ceiling == Some(0) {
            return Err(LimitError::Zero);
        }
        if ceiling.is_some_and(|ceiling| ceiling < max) {
            return Err(LimitError::CeilingBelowMax);
        }
        if ceiling.unwrap_or(max) > LOG_MAX {
            return Err(LimitError::LogTooLong);
        }
        Ok(Self { max, per, ceiling })
    }

    /// The maximum per window, the window, and the ceiling.
    pub const fn parameters(&self) -> (u32, Span, Option<u32>) {
        (self.max, self.per, self.ceiling)
    }

    /// The number of entries in the log, each of which is a word of the record.
    pub(super) fn log_length(&self) -> usize {
        self.ceiling.unwrap_or(self.max) as usize
    }

    /// The entry at `index`, counted from the oldest.
    fn hit(&self, record: &impl Record, ring: Ring, index: usize) -> Moment {
        Moment::from_nanos(record.word((ring.oldest + index) % self.log_length()))
    }

    /// The number of entries that have left the window. An entry exactly as old as the window has left it.
    fn gone(&self, record: &impl Record, ring: Ring, now: Moment) -> usize {
        self.count_oldest(record, ring, |hit| now >= hit + self.per)
    }

    /// The number of entries before `moment`.
    fn before(&self, record: &impl Record, ring: Ring, moment: Moment) -> usize {
        self.count_oldest(record, ring, |hit| hit < moment)
    }

    /// The number of oldest entries for which `is_older` holds. It must hold for a prefix of the entries.
    fn count_oldest(&self, record: &impl Record, ring: Ring, is_older: impl Fn(Moment) -> bool) -> usize {
        let (mut low, mut high) = (0, ring.length);
        while low < high {
            let middle = usize::midpoint(low, high);
            if is_older(self.hit(record, ring, middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether there is room for `count` more if the window has room for `most`.
    fn room_under(&self, most: u32, record: &impl Record, count: u64, now: Moment) -> Room {
        if count > u64::from(most) {
            return Room::Never;
        }
        let ring = Ring::read(record);
        let gone = self.gone(record, ring, now);
        let over = ((ring.length - gone) as u64 + count).saturating_sub(u64::from(most)) as usize;
        if over == 0 { Room::Now } else { Room::From(self.hit(record, ring, gone + over - 1) + self.per) }
    }

    pub(super) fn room(&self, record: &impl Record, count: u64, now: Moment) -> Room {
        self.room_under(self.max, record, count, now)
    }

    /// Whether there is room under the ceiling alone.
    pub(super) fn room_under_ceiling(&self, record: &impl Record, count: u64, now: Moment) -> Room {
        self.ceiling.map_or(Room::Now, |ceiling| self.room_under(ceiling, record, count, now))
    }

    /// Adds `count` entries for a request that is forwarded at `at`: now, or later if it is held.
    pub(super) fn charge(&self, record: &mut impl Record, count: u64, at: Moment, now: Moment) {
        let log = self.log_length();
        let before = Ring::read(record);
        let gone = self.gone(record, before, now);
        let mut ring = Ring { oldest: (before.oldest + gone) % log, length: before.length - gone };
        // The ring stays sorted even if a thread arrives late with an earlier time.
        let newest = ring.length.checked_sub(1).map_or(at, |last| at.max(self.hit(record, ring, last)));
        for _ in 0..count.min(log as u64) {
            if ring.length == log {
                ring = Ring { oldest: (ring.oldest + 1) % log, length: log - 1 };
            }
            record.set_word((ring.oldest + ring.length) % log, newest.as_nanos());
            ring.length += 1;
        }
        ring.write(record);
    }

    /// As [`Limit::mark`](super::Limit::mark): the time of the newest entry.
    pub(super) fn mark(&self, record: &impl Record) -> u64 {
        let ring = Ring::read(record);
        ring.length.checked_sub(1).map_or(0, |last| self.hit(record, ring, last).as_nanos())
    }

    /// Removes the entries of one request. Entries with the same time are interchangeable. Entries of a
    /// request that is still held stay: they replaced older ones, which remain in the window until the
    /// request would have been forwarded.
    pub(super) fn refund(&self, record: &mut impl Record, count: u64, charged: Charge, now: Moment) {
        let (mut ring, own) = (Ring::read(record), Moment::from_nanos(charged.mark));
        if own > now {
            return;
        }
        let first = self.before(record, ring, own);
        let most = usize::try_from(count).unwrap_or(usize::MAX).min(ring.length - first);
        let found = (first..first + most).take_while(|&index| self.hit(record, ring, index) == own).count();
        for index in first + found..ring.length {
            let hit = self.hit(record, ring, index).as_nanos();
            record.set_word((ring.oldest + index - found) % self.log_length(), hit);
        }
        ring.length -= found;
        ring.write(record);
    }

    pub(super) fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        let ring = Ring::read(record);
        let inside = (ring.length - self.gone(record, ring, now)) as u64;
        LimitInfo {
            remaining: u64::from(self.max).saturating_sub(inside),
            reset: self.room(record, 1, now).wait(now),
            clear: self.clear_at(record).since(now),
        }
    }

    /// Merges from the newest entry backwards, taking the later of each pair. Any window then has as many
    /// entries as in either log.
    pub(super) fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        let log = self.log_length();
        let (ours, theirs) = (Ring::read(into), Ring::read(from));
        let length = ours.length.max(theirs.length);
        let merged = Ring { oldest: (ours.oldest + ours.length + log - length) % log, length };
        for age in 1..=length {
            let nth_newest = |record: &dyn Record, ring: Ring| {
                let index = ring.length.checked_sub(age)?;
                Some(record.word((ring.oldest + index) % log))
            };
            let later = nth_newest(into, ours).max(nth_newest(from, theirs)).unwrap_or_default();
            into.set_word((merged.oldest + length - age) % log, later);
        }
        merged.write(into);
    }

    pub(super) fn clear_at(&self, record: &impl Record) -> Moment {
        let ring = Ring::read(record);
        ring.length.checked_sub(1).map_or(Moment::ZERO, |last| self.hit(record, ring, last) + self.per)
    }
}

//! Escalation: a rule blocks a key that exceeds its limit, and blocks it for longer each time that it does so again.
//!
//! The length of a block is the *backoff*, and it doubles with each *level*: 0 for a key without violations, one more
//! for each violation, and one less for each period without any. The state is two words after those of the limit in
//! the record: the end of the block, and the level together with the longest time until the limit had room, of all
//! violations since level 0. An attempt during the block changes neither. If it extended the block, a client that
//! retries on a timer would never be admitted again. The level falls with the time since the block ended and needs no
//! traffic to do so. [`Rule`](crate::rule::Rule) calls this module.

use crate::band::Band;
use crate::limit::LimitError;
use crate::record::Record;
use crate::time::{Moment, Span};

/// The growth and recovery of a rule's penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// The block of the first level, in the normal band.
    backoff: Span,
    /// The longest block.
    backoff_max: Span,
    /// The highest level.
    levels: u8,
    /// The time without violations that removes one level.
    release: Span,
    /// The multipliers of the bands.
    elevated: Multiplier,
    critical: Multiplier,
}

/// The factor by which a band lengthens a backoff, in thousandths; at least 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier {
    thousandths: u32,
}

impl Multiplier {
    /// A multiplier in thousandths; an error below 1000.
    pub fn new(thousandths: u32) -> Result<Self, LimitError> {
        if thousandths < 1000 { Err(LimitError::Zero) } else { Ok(Self { thousandths }) }
    }

    /// The multiplier in thousandths.
    pub const fn thousandths(self) -> u32 {
        self.thousandths
    }
}

/// The new state of a key after a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Penalty {
    pub(crate) level: u8,
    /// The longest time until the limit had room, of all violations since level 0, in microseconds.
    pub(crate) wait_us: u64,
    pub(crate) blocked_until: Moment,
}

/// The number of words of a record that an escalation uses, after those of the limit.
pub(crate) const WORDS: usize = 2;
const NANOS_PER_MICRO: u64 = 1000;
/// The level is in the low byte of its word, and the wait above it.
const LEVEL_BITS: u32 = 8;
/// The longest wait that is stored, 203 days. With [`LEVEL_BITS`], the word has 52 bits: the script that computes the
/// same on Redis has only floating-point numbers, which are exact up to 2^53.
const WAIT_US_MAX: u64 = (1 << 44) - 1;

impl Escalation {
    /// A first violation blocks the key for `backoff`, or until its limit has room if that is later. Each
    /// further level doubles that, up to `backoff_max`, for at most `levels` levels. One level is removed per
    /// `release` without violations. Multipliers apply in the elevated and critical bands.
    pub fn new(
        (backoff, backoff_max): (Span, Span),
        levels: u8,
        release: Span,
        (elevated, critical): (Multiplier, Multiplier),
    ) -> Result<Self, LimitError> {
        if backoff.is_zero() || levels == 0 || release.is_zero() {
            return Err(LimitError::Zero);
        }
        if backoff_max < backoff {
            return Err(LimitError::CeilingBelowMax);
        }
        Ok(Self { backoff, backoff_max, levels, release, elevated, critical })
    }

    /// The first and the longest backoff, the number of levels, and the time that removes one.
    pub const fn parameters(&self) -> ((Span, Span), u8, Span) {
        ((self.backoff, self.backoff_max), self.levels, self.release)
    }

    /// The end of the block; `at` is the index of this escalation's first word.
    pub(crate) fn blocked_until(&self, record: &impl Record, at: usize) -> Moment {
        Moment::from_nanos(record.word(at))
    }

    /// The current level, after recovery.
    pub(crate) fn level(&self, record: &impl Record, at: usize, now: Moment) -> u8 {
        let calm = now.since(self.blocked_until(record, at)).as_nanos() / self.release.as_nanos();
        level_in(record.word(at + 1)).saturating_sub(u8::try_from(calm).unwrap_or(u8::MAX)).min(self.levels)
    }

    /// The longest time until the limit had room, of all violations since level 0, in microseconds.
    pub(crate) fn wait_us(&self, record: &impl Record, at: usize) -> u64 {
        record.word(at + 1) >> LEVEL_BITS
    }

    /// The penalty for a violation at `now` of a key whose limit has room from `room_from` on.
    pub(crate) fn penalty(
        &self,
        record: &impl Record,
        at: usize,
        band: Band,
        room_from: Moment,
        now: Moment,
    ) -> Penalty {
        let level_before = self.level(record, at, now);
        let earlier_us = if level_before == 0 { 0 } else { self.wait_us(record, at) };
        let wait_us = room_from.since(now).as_nanos().div_ceil(NANOS_PER_MICRO).max(earlier_us).min(WAIT_US_MAX);
        let level = level_before.saturating_add(1).min(self.levels);
        let block = self.block(level, band, wait_us);
        // The block lasts as long as the announced wait. Otherwise an earlier attempt would count as another
        // violation.
        Penalty { level, wait_us, blocked_until: (now + block).max(room_from) }
    }

    /// Stores the penalty; `at` is as in [`blocked_until`](Self::blocked_until).
    pub(crate) fn punish(&self, record: &mut impl Record, at: usize, penalty: Penalty) {
        record.set_word(at, penalty.blocked_until.as_nanos());
        record.set_word(at + 1, penalty.wait_us << LEVEL_BITS | u64::from(penalty.level));
    }

    /// Merges the state of `from` into `into`. The block that ends later is kept. The level is the higher one of those
    /// that the two records have at the end of that block, and the wait is the longer one of those that count by then.
    pub(crate) fn absorb(&self, into: &mut impl Record, from: &impl Record, at: usize) {
        let block = |record: &dyn Record| (Moment::from_nanos(record.word(at)), record.word(at + 1));
        let (ours, theirs) = (block(into), block(from));
        let (later, earlier) = if ours >= theirs { (ours, theirs) } else { (theirs, ours) };
        let calm = later.0.since(earlier.0).as_nanos() / self.release.as_nanos();
        let healed = level_in(earlier.1).saturating_sub(u8::try_from(calm).unwrap_or(u8::MAX));
        let wait_us = (later.1 >> LEVEL_BITS).max(if healed == 0 { 0 } else { earlier.1 >> LEVEL_BITS });
        into.set_word(at, later.0.as_nanos());
        into.set_word(at + 1, wait_us << LEVEL_BITS | u64::from(level_in(later.1).max(healed)));
    }

    /// The time from which the level is 0.
    pub(crate) fn clear_at(&self, record: &impl Record, at: usize) -> Moment {
        self.blocked_until(record, at) + self.release.times(u64::from(level_in(record.word(at + 1))))
    }

    /// The length of the block of a level in a band, for a key whose limit had no room for up to `wait_us`
    /// microseconds; levels count from 1.
    ///
    /// The first level must last until there is room, since a client that returned earlier would be refused
    /// again. If only the first level were prolonged, the next levels could be shorter than the time until there
    /// is room, and would have no effect. So all levels are multiples of the first. The longest wait counts, not the
    /// latest: a window that was filled within some milliseconds has room for only one request at a time when the block
    /// ends, so the next violation comes soon and its own wait is short.
    pub fn block(&self, level: u8, band: Band, wait_us: u64) -> Span {
        let scaled = |first: u64| {
            let doubled = u128::from(first) << u32::from(level.saturating_sub(1)).min(63);
            let scaled = doubled.saturating_mul(u128::from(self.multiplier(band).thousandths)) / 1000;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        // The wait counts in whole microseconds, because the script for Redis computes with those.
        let prolonged = scaled(wait_us).saturating_mul(NANOS_PER_MICRO);
        Span::from_nanos(scaled(self.backoff.as_nanos()).max(prolonged)).min(self.backoff_max)
    }

    /// The multiplier of a band.
    pub const fn multiplier(&self, band: Band) -> Multiplier {
        match band {
            Band::Normal => Multiplier { thousandths: 1000 },
            Band::Elevated => self.elevated,
            Band::Critical => self.critical,
        }
    }
}

/// The level, which is the low byte of its word.
const fn level_in(word: u64) -> u8 {
    word as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::PlainRecord;
    use proptest::prelude::*;

    fn record(blocked_until_ms: u64, level: u64) -> PlainRecord {
        let mut record = PlainRecord::new(WORDS);
        record.set_word(0, Moment::from_millis(blocked_until_ms).as_nanos());
        record.set_word(1, level);
        record
    }

    proptest! {
        #[test]
        fn a_merged_block_lasts_as_long_and_recovers_no_earlier(
            one in (0..10_000_u64, 0..10_u64), other in (0..10_000_u64, 0..10_u64), wait_ms in 0..20_000_u64,
        ) {
            let multipliers = (Multiplier::new(2_000).unwrap(), Multiplier::new(4_000).unwrap());
            let backoffs = (Span::from_secs(1), Span::from_secs(60));
            let escalation = Escalation::new(backoffs, 10, Span::from_secs(1), multipliers).unwrap();
            let parts = [record(one.0, one.1), record(other.0, other.1)];
            let mut merged = parts[0].clone();
            escalation.absorb(&mut merged, &parts[1], 0);
            let healing_at = escalation.blocked_until(&merged, 0) + Span::from_millis(wait_ms);
            for part in &parts {
                prop_assert!(escalation.blocked_until(&merged, 0) >= escalation.blocked_until(part, 0));
                prop_assert!(escalation.level(&merged, 0, healing_at) >= escalation.level(part, 0, healing_at));
                prop_assert!(escalation.clear_at(&merged, 0) >= escalation.clear_at(part, 0));
            }
        }
    }
}

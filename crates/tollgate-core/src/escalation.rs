//! Those who go on offending wait longer each time, and calm heals.
//!
//! Two words of the record: until when the key is blocked, and its level. A try inside the backoff changes neither: were it to extend the
//! block, a client on a timer of its own would never be let in again. Calm is the time since the backoff ended, so the level
//! falls by itself, without needing traffic to notice.

use crate::band::Band;
use crate::limit::Misfit;
use crate::record::Record;
use crate::time::{Moment, Span};

/// How the penalty of a rule grows and heals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalation {
    backoff: Span,
    backoff_max: Span,
    levels: u8,
    release: Span,
    elevated: Multiplier,
    critical: Multiplier,
}

/// What a band multiplies a backoff by, in thousandths; never less than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier {
    thousandths: u32,
}

impl Multiplier {
    /// A multiplier in thousandths.
    pub fn new(thousandths: u32) -> Result<Self, Misfit> {
        if thousandths < 1000 { Err(Misfit::Zero) } else { Ok(Self { thousandths }) }
    }
}

/// What a violation leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Penalty {
    pub(crate) level: u8,
    pub(crate) blocked_until: Moment,
}

/// How many words of a record an escalation takes, after those of the limit.
pub(crate) const WORDS: usize = 2;

impl Escalation {
    /// Backoffs of `backoff`, doubled per level up to `backoff_max`, over at most `levels` levels, one of which is forgiven per
    /// `release` of calm; a band multiplies.
    pub fn new(
        (backoff, backoff_max): (Span, Span),
        levels: u8,
        release: Span,
        (elevated, critical): (Multiplier, Multiplier),
    ) -> Result<Self, Misfit> {
        if backoff.is_zero() || levels == 0 || release.is_zero() {
            return Err(Misfit::Zero);
        }
        if backoff_max < backoff {
            return Err(Misfit::CeilingBelowMax);
        }
        Ok(Self { backoff, backoff_max, levels, release, elevated, critical })
    }

    /// The first backoff and the longest, the levels, and the calm that forgives one.
    pub const fn figures(&self) -> ((Span, Span), u8, Span) {
        ((self.backoff, self.backoff_max), self.levels, self.release)
    }

    /// Until when the key is blocked; `at` is the first of this escalation's words.
    pub(crate) fn blocked_until(&self, record: &impl Record, at: usize) -> Moment {
        Moment::from_nanos(record.word(at))
    }

    /// The level that is left of what the record says.
    pub(crate) fn level(&self, record: &impl Record, at: usize, now: Moment) -> u8 {
        let calm = now.since(self.blocked_until(record, at)).as_nanos() / self.release.as_nanos();
        u8::try_from(record.word(at + 1).saturating_sub(calm)).unwrap_or(self.levels)
    }

    /// What a violation at `now` leads to.
    pub(crate) fn penalty(&self, record: &impl Record, at: usize, band: Band, now: Moment) -> Penalty {
        let level = self.level(record, at, now).saturating_add(1).min(self.levels);
        Penalty { level, blocked_until: now + self.backoff(level, band) }
    }

    pub(crate) fn punish(&self, record: &mut impl Record, at: usize, penalty: Penalty) {
        record.set_word(at, penalty.blocked_until.as_nanos());
        record.set_word(at + 1, u64::from(penalty.level));
    }

    /// The later block stays, with the higher of the levels that are left when it begins to heal.
    pub(crate) fn absorb(&self, into: &mut impl Record, from: &impl Record, at: usize) {
        let block = |record: &dyn Record| (Moment::from_nanos(record.word(at)), record.word(at + 1));
        let (ours, theirs) = (block(into), block(from));
        let (later, earlier) = if ours >= theirs { (ours, theirs) } else { (theirs, ours) };
        let healed = later.0.since(earlier.0).as_nanos() / self.release.as_nanos();
        into.set_word(at, later.0.as_nanos());
        into.set_word(at + 1, later.1.max(earlier.1.saturating_sub(healed)));
    }

    pub(crate) fn clear_at(&self, record: &impl Record, at: usize) -> Moment {
        self.blocked_until(record, at) + self.release.times(record.word(at + 1))
    }

    /// How long the backoff of a level is in a band; levels count from 1.
    pub fn backoff(&self, level: u8, band: Band) -> Span {
        let thousandths = match band {
            Band::Normal => 1000,
            Band::Elevated => self.elevated.thousandths,
            Band::Critical => self.critical.thousandths,
        };
        let doubled = u128::from(self.backoff.as_nanos()) << u32::from(level.saturating_sub(1)).min(63);
        let nanos = doubled.saturating_mul(u128::from(thousandths)) / 1000;
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(self.backoff_max)
    }
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
        fn what_absorbed_another_is_blocked_as_long_and_heals_no_sooner(
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

//! `escalation` of a rule: blocks for keys that exceed their limit, each longer than the one before.

use tollgate_core::escalation::{Escalation, Multiplier};

use super::error::ErrorCollector;
use super::limit::fit;
use super::table::{Located, table};
use super::value::{PositiveSpan, Thousandths, WholeNumber};

table! {
    /// Blocks a key that exceeds its limit. Each further violation raises the level of the key and doubles the block;
    /// time without a violation lowers the level.
    struct EscalationTable {
        /// Length of the block after the first violation, or until the limit has room if that is later. Each further
        /// level doubles it.
        backoff: PositiveSpan = "\"1s\"",
        /// Maximum length of a block, at any level and in any band.
        backoff_max: PositiveSpan = "\"60s\"",
        /// The highest level, from 1 to 255.
        levels: WholeNumber<u8> = "10",
        /// Time without a violation after the end of a block that lowers the level by one.
        release: PositiveSpan = "\"30s\"",
        /// Factor on the block in the band `elevated`; at least 1.
        elevated: Thousandths = "2",
        /// Factor on the block in the band `critical`; at least 1.
        critical: Thousandths = "4",
    }
}

impl Located<EscalationTable> {
    pub(super) fn resolve(&self, errors: &mut ErrorCollector) -> Option<Escalation> {
        let table = &self.value;
        let (backoff, backoff_max) = (table.backoff.value, table.backoff_max.value);
        let (elevated, critical) = (multiplier(&table.elevated, errors), multiplier(&table.critical, errors));
        if table.critical.value < table.elevated.value {
            let message =
                "`critical` is below `elevated`: more load must not mean a shorter backoff, write a larger number";
            return errors.refuse(&table.critical.span, message);
        }
        if backoff_max < backoff {
            let message = "`backoff_max` is shorter than `backoff`: write a longer one";
            return errors.refuse(&table.backoff_max.span, message);
        }
        let (levels, release) = (table.levels.value, table.release.value);
        fit(Escalation::new((backoff, backoff_max), levels, release, (elevated?, critical?)), self, errors)
    }
}

fn multiplier(number: &Located<u32>, errors: &mut ErrorCollector) -> Option<Multiplier> {
    let message = "a band multiplies a backoff by at least 1: write 1 or more";
    Multiplier::new(number.value).ok().or_else(|| errors.refuse(&number.span, message))
}

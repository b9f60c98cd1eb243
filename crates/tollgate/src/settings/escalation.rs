//! How the penalty of a rule grows and heals.

use std::num::NonZeroU8;

use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::time::Span;

use super::fault::Collector;
use super::limit::{fit, nonzero};
use super::table::{Placed, table};
use super::value::Thousandths;

table! {
    /// Who goes on offending waits longer each time, and calm heals.
    struct EscalationTable {
        /// The time for which the first violation blocks a key, or until its limit has room if that is later. Each further level doubles it.
        backoff: Span = "\"1s\"",
        /// The longest that a violation blocks a key, whatever its level and the band.
        backoff_max: Span = "\"60s\"",
        /// The highest level, from 1 to 255.
        levels: NonZeroU8 = "10",
        /// One level is forgiven for each such time of calm after the backoff.
        release: Span = "\"30s\"",
        /// What the backoff is multiplied by while the backend's load is elevated; at least 1.
        elevated: Thousandths = "2",
        /// What the backoff is multiplied by while the backend's load is critical; at least 1.
        critical: Thousandths = "4",
    }
}

impl Placed<EscalationTable> {
    pub(super) fn meaning(&self, faults: &mut Collector) -> Option<Escalation> {
        let table = &self.value;
        let backoff = nonzero(&table.backoff, faults);
        let release = nonzero(&table.release, faults);
        let backoff_max = nonzero(&table.backoff_max, faults);
        let (elevated, critical) = (multiplier(&table.elevated, faults), multiplier(&table.critical, faults));
        if table.critical.value.0 < table.elevated.value.0 {
            let message =
                "`critical` is below `elevated`: more load must not mean a shorter backoff, write a larger number";
            faults.fault(&table.critical.span, message);
            return None;
        }
        let (backoff, backoff_max, release) = (backoff?, backoff_max?, release?);
        if backoff_max < backoff {
            faults.fault(&table.backoff_max.span, "`backoff_max` is shorter than `backoff`: write a longer one");
            return None;
        }
        let escalation =
            Escalation::new((backoff, backoff_max), table.levels.value.get(), release, (elevated?, critical?));
        fit(escalation, self, faults)
    }
}

fn multiplier(number: &Placed<Thousandths>, faults: &mut Collector) -> Option<Multiplier> {
    let made = Multiplier::new(number.value.0);
    if made.is_err() {
        faults.fault(&number.span, "a band multiplies a backoff by at least 1: write 1 or more");
    }
    made.ok()
}

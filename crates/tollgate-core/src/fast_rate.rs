//! Fast path for the most common rule.
//!
//! Most counting rules admit one request per interval with a burst: a rate whose interval is a whole number
//! of nanoseconds, or a bucket that leaks one request at a time, without escalation or warm-up. Their state
//! is one moment, and a decision is a maximum, two additions and two comparisons. The general path takes
//! three times as many instructions, which is too long for the processor to fetch the record of the next
//! caller in the meantime.

use crate::decision::Verdict;
use crate::limit::Limit;
use crate::rule::{Mode, Rule};
use crate::time::{Moment, Span};

/// One request per interval, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRate {
    interval: Span,
    depth: Span,
    hold_max: Span,
}

impl FastRate {
    /// The fast path for `rule`, if the rule is simple enough.
    pub fn of(rule: &Rule) -> Option<Self> {
        let plain = rule.escalation.is_none() && rule.warmup.is_none() && rule.mode == Mode::Enforce;
        let (interval, depth) = match &rule.limit {
            Limit::Rate(rate) => rate.whole_interval()?,
            Limit::Bucket(bucket) => bucket.whole_interval()?,
            Limit::Budget(_) | Limit::Window(_) | Limit::InFlight(_) => return None,
        };
        plain.then_some(Self { interval, depth, hold_max: rule.hold_max })
    }

    /// Decides on one request. `paid_at` is the first word of the record; the rest of such a record is always
    /// zero. Also returns the new value of that word if the request is admitted.
    #[inline]
    pub fn decide(self, paid_at: Moment, now: Moment) -> (Verdict, Moment) {
        let spent = paid_at.max(now) + self.interval;
        if spent <= now + self.depth {
            return (Verdict::Admit, spent);
        }
        let from = spent.before(self.depth);
        let verdict = if from.since(now) <= self.hold_max { Verdict::Hold(from) } else { Verdict::Refuse(from) };
        (verdict, spent)
    }
}

//! Fast path for the most common rules. It decides exactly as [`Rule::check`] and [`Rule::charge`] do.
//!
//! Most counting rules admit one request per interval with a burst: a rate whose interval is a whole number
//! of nanoseconds, or a bucket that leaks one request at a time, without escalation or warm-up. Their state
//! is one moment, and a decision is a maximum, two additions and two comparisons. The general path takes
//! three times as many instructions: so many that the processor, which executes instructions ahead of time, does not
//! reach the next decision and cannot load its record from memory in advance.

use crate::decision::Verdict;
use crate::limit::Limit;
use crate::rule::{Mode, Rule};
use crate::time::{Moment, Span};

/// One request per interval, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRate {
    /// The time in which one request is paid back.
    interval: Span,
    /// The time in which a full burst is paid back.
    depth: Span,
    /// [`Rule::hold_max`].
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

    /// Decides on one request. `paid_at` is the first word of the record, the time at which all charges are paid back;
    /// the rest of such a record is always zero. Also returns the value of that word with this request, which the
    /// caller stores unless the request is refused.
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

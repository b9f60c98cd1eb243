//! The common rule in the fewest steps.
//!
//! Most rules that count come down to one request per interval with a burst: a rate whose interval is a whole number of nanoseconds, or a
//! bucket that leaks one at a time, and nothing else to consider. Their state is one moment, and a decision is a maximum, two sums and
//! two comparisons. The general way through conditions of every kind costs three times as many instructions, which is more than the
//! processor can work ahead of while it waits for the record of the next caller.

use crate::decision::Verdict;
use crate::limit::Limit;
use crate::rule::{Mode, Rule};
use crate::time::{Moment, Span};

/// One request per interval, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    interval: Span,
    depth: Span,
    hold_max: Span,
}

impl Beat {
    /// The beat of `rule`, if that is all there is to it.
    pub fn of(rule: &Rule) -> Option<Self> {
        let plain = rule.escalation.is_none() && rule.warmup.is_none() && rule.mode == Mode::Enforce;
        let (interval, depth) = match &rule.limit {
            Limit::Rate(rate) => rate.beat()?,
            Limit::Bucket(bucket) => bucket.beat()?,
            Limit::Budget(_) | Limit::Window(_) | Limit::InFlight(_) => return None,
        };
        plain.then_some(Self { interval, depth, hold_max: rule.hold_max })
    }

    /// What one request is told when the record's first word says `paid_at`, and what that word becomes if the request goes on. The
    /// rest of such a record is always zero.
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

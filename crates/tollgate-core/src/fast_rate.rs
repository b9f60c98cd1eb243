//! Fast path for the most common rules, for services that embed the limiter: `Limiter::decide_key` of the gatekeeper
//! uses it. It decides exactly as [`Rule::check`] and [`Rule::charge`] do.
//!
//! Most counting rules admit one request per interval with a burst: a rate whose interval is a whole number of
//! nanoseconds, or a bucket that leaks one request at a time, without escalation, warm-up or observe mode. Their state
//! is one moment, and an admission takes a maximum, two additions and a comparison. The general path takes so many
//! instructions that the processor, which executes instructions ahead of time, does not reach the next decision and
//! cannot load its record from memory in advance. `bench/decide` measures this path.

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
    /// The longest time that a request is held ([`Rule::hold_max`]).
    hold_max: Span,
}

impl FastRate {
    /// The fast path for `rule`, if the rule is simple enough.
    pub fn of(rule: &Rule) -> Option<Self> {
        let is_simple = rule.escalation.is_none() && rule.warmup.is_none() && rule.mode == Mode::Enforce;
        let (interval, depth) = match &rule.limit {
            Limit::Rate(rate) => rate.whole_interval()?,
            Limit::Bucket(bucket) => bucket.whole_interval()?,
            Limit::Budget(_) | Limit::Window(_) | Limit::InFlight(_) => return None,
        };
        is_simple.then_some(Self { interval, depth, hold_max: rule.hold_max })
    }

    /// Decides on one request of a key. `paid_at` is the time at which all earlier charges of the key are paid back:
    /// the first word of its record, whose other words are always zero. Also returns that time with the charge of this
    /// request. The caller stores it for an admitted or held request, and not for a refused one.
    #[inline]
    pub fn decide(self, paid_at: Moment, now: Moment) -> (Verdict, Moment) {
        let spent = paid_at.max(now) + self.interval;
        if spent <= now + self.depth {
            return (Verdict::Admit, spent);
        }
        // The time at which the burst has room for this request.
        let from = spent.before(self.depth);
        let verdict = if from.since(now) <= self.hold_max { Verdict::Hold(from) } else { Verdict::Refuse(from) };
        (verdict, spent)
    }
}

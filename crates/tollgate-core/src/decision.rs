//! The decision on a request, and its reason.

use crate::band::Band;
use crate::limit::LimitInfo;
use crate::time::{Moment, Span};

/// The action on a request. Variants are ordered by strictness, and within a variant a later time is
/// stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Forward the request.
    Admit,
    /// Forward the request at this time.
    Hold(Moment),
    /// Refuse the request. A retry succeeds from this time on.
    Refuse(Moment),
    /// Refuse the request. A retry succeeds after another request of the same key ends.
    RefuseUntilRelease,
    /// Refuse the request. Waiting does not help, because the toll is larger than the limit.
    RefuseForGood,
}

impl Verdict {
    /// Whether the request is refused.
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::Refuse(_) | Self::RefuseUntilRelease | Self::RefuseForGood)
    }

    /// The name in logs, metrics and APIs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Hold(_) => "hold",
            Self::Refuse(_) | Self::RefuseUntilRelease | Self::RefuseForGood => "refuse",
        }
    }

    /// How long the request is held.
    pub fn hold(self, now: Moment) -> Span {
        match self {
            Self::Hold(until) => until.since(now),
            _ => Span::ZERO,
        }
    }

    /// The time to wait before a retry; zero if waiting does not help.
    pub fn retry_after(self, now: Moment) -> Span {
        match self {
            Self::Refuse(from) => from.since(now),
            // The end of another request is unknown. One second is short enough to be useful and long enough
            // to prevent a retry storm.
            Self::RefuseUntilRelease => Span::from_secs(1),
            Self::Admit | Self::Hold(_) | Self::RefuseForGood => Span::ZERO,
        }
    }
}

crate::named_enum! {
    /// The reason of a verdict.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Reason {
        /// No rule applies.
        NoRule = "no-rule",
        /// Every rule has room.
        WithinLimit = "within-limit",
        /// The limit has no room, but during warm-up only ceilings apply.
        WarmUp = "warm-up",
        /// The limit has no room.
        OverLimit = "over-limit",
        /// The ceiling is reached, which nothing lifts.
        Ceiling = "ceiling",
        /// The backoff of an earlier violation has not ended.
        InBackoff = "in-backoff",
        /// The in-flight limit is reached.
        Busy = "busy",
        /// The request is larger than the limit.
        TooLarge = "too-large",
        /// The store with the rule's state did not answer in time, and the rule is set to refuse in that case.
        StoreTimeout = "store-timeout",
        /// A rule in observe mode would have held the request.
        WouldHold = "would-hold",
        /// A rule in observe mode would have refused the request.
        WouldRefuse = "would-refuse",
    }
}

crate::named_enum! {
    /// An act on a request. An act of a rule in observe mode, or of an observing queue, is one that would have
    /// happened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Act {
        /// The request was delayed.
        Hold = "hold",
        /// The request was refused.
        Refuse = "refuse",
        /// The request would have been delayed.
        WouldHold = "would-hold",
        /// The request would have been refused.
        WouldRefuse = "would-refuse",
    }
}

/// How often each act happened, in the order of [`Act`].
pub type ActCounts = [u64; Act::ALL.len()];

/// The combined decision of all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub verdict: Verdict,
    /// The reason of the action.
    pub reason: Reason,
    /// The index of the strictest rule; `None` if no rule applies.
    pub rule: Option<usize>,
    /// The state of that rule's limit, after the charge if there was one.
    pub info: Option<LimitInfo>,
    /// The escalation level of this key in that rule.
    pub level: u8,
    /// The load band at the time of the decision.
    pub band: Band,
}

impl Decision {
    /// The decision if no rule applies.
    pub const fn no_rule(band: Band) -> Self {
        Self { verdict: Verdict::Admit, reason: Reason::NoRule, rule: None, info: None, level: 0, band }
    }

    /// The act on the request; none if it passes.
    pub fn act(&self) -> Option<Act> {
        match (self.verdict, self.reason) {
            (Verdict::Hold(_), _) => Some(Act::Hold),
            (verdict, _) if verdict.is_refusal() => Some(Act::Refuse),
            (_, Reason::WouldHold) => Some(Act::WouldHold),
            (_, Reason::WouldRefuse) => Some(Act::WouldRefuse),
            _ => None,
        }
    }

    /// Replaces this decision by `other` if that is stricter: by verdict, then by the remaining quota.
    pub fn tighten(&mut self, other: Self) {
        let remaining = |decision: &Self| decision.info.map_or(u64::MAX, |info| info.remaining);
        let stricter = (other.verdict, remaining(self)) > (self.verdict, remaining(&other));
        if self.rule.is_none() || stricter {
            *self = other;
        }
    }
}

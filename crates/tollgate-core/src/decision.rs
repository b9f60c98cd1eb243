//! What is said to a request, and why.

use crate::band::Band;
use crate::limit::LimitInfo;
use crate::time::{Moment, Span};

/// What happens to the request. Later in this list, and later in time, is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It goes on.
    Admit,
    /// It goes on at this moment.
    Hold(Moment),
    /// It may be tried again from this moment on.
    Refuse(Moment),
    /// It may be tried again when a request of the same key has ended.
    RefuseUntilRelease,
    /// It is refused, and no waiting helps: it is larger than the limit.
    RefuseForGood,
}

impl Verdict {
    /// Whether the request is turned away.
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::Refuse(_) | Self::RefuseUntilRelease | Self::RefuseForGood)
    }

    /// The word that people and programs see.
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

    /// How long a refused client should wait; none is known for what no waiting helps.
    pub fn retry_after(self, now: Moment) -> Span {
        match self {
            Self::Refuse(from) => from.since(now),
            // Nobody knows when another request ends. A second is short enough to be of use and long enough not to be a storm.
            Self::RefuseUntilRelease => Span::from_secs(1),
            Self::Admit | Self::Hold(_) | Self::RefuseForGood => Span::ZERO,
        }
    }
}

/// Why a verdict is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule applies.
    NoRule,
    /// Every rule has room.
    WithinLimit,
    /// The limit has no room, but during warm-up only ceilings apply.
    WarmUp,
    /// The limit has no room.
    OverLimit,
    /// The ceiling is reached, which nothing lifts.
    Ceiling,
    /// An earlier violation is still being paid for.
    InBackoff,
    /// As many as may be are at work.
    Busy,
    /// The request is larger than the limit.
    TooLarge,
    /// The store that the rule's state is in did not decide in time, and the rule is to refuse then.
    StoreTimeout,
    /// A rule that only observes would have held it.
    WouldHold,
    /// A rule that only observes would have refused it.
    WouldRefuse,
}

impl Reason {
    /// The word that people and programs see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRule => "no-rule",
            Self::WithinLimit => "within-limit",
            Self::WarmUp => "warm-up",
            Self::OverLimit => "over-limit",
            Self::Ceiling => "ceiling",
            Self::InBackoff => "in-backoff",
            Self::Busy => "busy",
            Self::TooLarge => "too-large",
            Self::StoreTimeout => "store-timeout",
            Self::WouldHold => "would-hold",
            Self::WouldRefuse => "would-refuse",
        }
    }
}

/// What all rules together say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens to the request.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// Which rule was the strictest, by its place; none when no rule applies.
    pub rule: Option<usize>,
    /// That rule's figures, after the charge if there was one.
    pub info: Option<LimitInfo>,
    /// That rule's level of escalation for this key.
    pub level: u8,
    /// The band in which it was decided.
    pub band: Band,
}

impl Decision {
    /// What is said when no rule applies.
    pub const fn no_rule(band: Band) -> Self {
        Self { verdict: Verdict::Admit, reason: Reason::NoRule, rule: None, info: None, level: 0, band }
    }

    /// Takes `other`'s place if that is the stricter of the two: by verdict, then by what is left.
    pub fn tighten(&mut self, other: Self) {
        let remaining = |decision: &Self| decision.info.map_or(u64::MAX, |info| info.remaining);
        let stricter = (other.verdict, remaining(self)) > (self.verdict, remaining(&other));
        if self.rule.is_none() || stricter {
            *self = other;
        }
    }
}

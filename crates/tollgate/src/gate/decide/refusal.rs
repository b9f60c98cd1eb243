//! A refusal: why the rules or the queue do not let a request through, and when its client may try again. The gate and
//! the doors make their responses from it.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::time::{Moment, Span};

use super::rules::{Face, Rules};

/// The problem type of a refusal in its response (draft-ietf-httpapi-ratelimit-headers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The client is over a limit of its own.
    QuotaExceeded,
    /// The service as a whole is short of capacity.
    ReducedCapacity,
    /// The client exceeded the limit of a rule with an escalation, which blocks it.
    AbnormalUsage,
}

impl Cause {
    /// The name in traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "quota-exceeded",
            Self::ReducedCapacity => "reduced-capacity",
            Self::AbnormalUsage => "abnormal-usage",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => 429,
            Self::ReducedCapacity => 503,
        }
    }
}

/// A refused request. It has no text of the response: that is written when it is sent, because a refusal must be cheap.
#[derive(Clone)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    /// The limit that refused it, as the log names it.
    pub(crate) reason: &'static str,
    /// The time until the next attempt; none if waiting does not help, because the request exceeds its limit by itself.
    pub(crate) retry_after: Option<Span>,
    /// The estimated wait in seconds, if the queue refused it: a small type, because a refusal is returned as an error.
    pub(crate) wait_secs: Option<NonZeroU32>,
    /// The rules that refused it and their decision; none if the queue did.
    pub(crate) by: Option<(Arc<Rules>, Decision)>,
}

impl Refusal {
    /// A refusal by the rules.
    pub(crate) fn by_rule(rules: &Arc<Rules>, decision: Decision, now: Moment) -> Self {
        let retry_after = match decision.verdict {
            Verdict::RefuseForGood => None,
            verdict => Some(verdict.retry_after(now)),
        };
        let cause = match (decision.reason, decision.level) {
            (Reason::StoreTimeout, _) => Cause::ReducedCapacity,
            (_, 0) => Cause::QuotaExceeded,
            // An escalation raises the level from its first violation on. Without one, the level is always 0.
            _ => Cause::AbnormalUsage,
        };
        Self {
            cause,
            reason: decision.reason.as_str(),
            retry_after,
            wait_secs: None,
            by: Some((rules.clone(), decision)),
        }
    }

    /// A refusal by the queue, or by the limits on uploads, which estimate no `wait`. `is_own`: the requests of the
    /// client or its network are the reason, not those of others.
    pub(crate) fn by_queue(reason: &'static str, is_own: bool, retry_after: Span, wait: Option<Span>) -> Self {
        let cause = if is_own { Cause::QuotaExceeded } else { Cause::ReducedCapacity };
        let secs = |wait: Span| u32::try_from(wait.as_secs_ceil()).unwrap_or(u32::MAX);
        let wait_secs = wait.map(|wait| NonZeroU32::new(secs(wait)).unwrap_or(NonZeroU32::MIN));
        Self { cause, reason, retry_after: Some(retry_after), wait_secs, by: None }
    }

    /// The rule that refused it.
    pub(crate) fn rule(&self) -> Option<&Face> {
        let (rules, decision) = self.by.as_ref()?;
        rules.face(decision)
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> u16 {
        // The status in the settings of a rule is for clients that exceed its limit.
        let own = self.rule().filter(|_| self.cause != Cause::ReducedCapacity).and_then(|rule| rule.status);
        own.unwrap_or_else(|| self.cause.status())
    }
}

/// The jitter of `Retry-After` is up to one part in this many of the wait, at least 1 s and at most 60 s, so that
/// clients that were refused together do not return together. It only adds time: a client that waits as long as
/// announced is never early.
const JITTER_PARTS: u64 = 4;

/// The value of `Retry-After` in seconds; `random` selects the jitter.
pub(crate) fn jittered_secs(retry_after: Span, random: u64) -> u64 {
    let secs = retry_after.as_secs_ceil().max(1);
    let spread = (secs / JITTER_PARTS).clamp(1, 60);
    secs.saturating_add(random % (spread + 1))
}

/// A number for the jitter of [`jittered_secs`]: a mix of the client's address and the time, so that it differs between
/// clients and moments without a source of randomness.
pub(crate) fn spread_of(client: IpAddr, now_ms: u64) -> u64 {
    let bits = match client {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    let mut mixed = (bits ^ now_ms.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_never_too_short_and_is_jittered() {
        for millis in [0, 1, 999, 1000, 1001, 60_000, 3_600_000] {
            let wait = Span::from_millis(millis);
            let secs: std::collections::BTreeSet<u64> = (0..1000).map(|random| jittered_secs(wait, random)).collect();
            assert!(secs.iter().all(|secs| secs * 1000 >= millis));
            assert!(secs.len() >= 2, "{millis} ms gives {secs:?}");
        }
    }
}

//! Decides on one request by several rules at once: checks all of them, then charges all or none. The strictest result
//! wins.
//!
//! If rules were charged one by one until the first refusal, a request that the last rule refuses would be
//! charged by all rules before it. Checking and applying are two steps so that the limiter, whose records are shared by
//! threads, locks them only if something changes. The requests of a client that keeps sending over its limit change
//! nothing, except that an escalation adds one penalty per violation.

use crate::decision::Decision;
use crate::record::Record;
use crate::rule::{Check, Mode, Rule, Situation};
use crate::toll::Toll;

/// A rule that applies to the request, with the record of the request's key.
pub struct Claim<'rule, R> {
    /// The index of the rule among all rules.
    pub place: usize,
    rule: &'rule Rule,
    /// The state of the request's key.
    pub record: R,
    /// The result of [`check_all`].
    check: Check,
    /// [`Limit::mark`](crate::limit::Limit::mark) right after the charge; `None` if the rule has nothing to settle
    /// when the request ends.
    pub mark: Option<u64>,
}

impl<'rule, R: Record> Claim<'rule, R> {
    /// `rule` has the index `place` among all rules; `record` is the state of the request's key.
    #[inline]
    pub fn new(place: usize, rule: &'rule Rule, record: R) -> Self {
        Self { place, rule, record, check: Check::UNSEEN, mark: None }
    }
}

/// The combined result of all checks, before any state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckSummary {
    /// Whether any rule refuses the request. Rules in observe mode do not count.
    pub refuses: bool,
    /// Whether applying the result changes any record.
    pub changes: bool,
}

/// Checks all rules without changing a record.
#[inline]
pub fn check_all<R: Record>(claims: &mut [Claim<'_, R>], toll: Toll, situation: &Situation) -> CheckSummary {
    let mut refuses = false;
    for claim in &mut *claims {
        claim.check = claim.rule.check(&claim.record, toll, situation);
        refuses |= claim.check.is_refusal() && claim.rule.mode == Mode::Enforce;
    }
    let changes = claims.iter().any(|claim| claim.rule.changes(&claim.check, toll, refuses));
    CheckSummary { refuses, changes }
}

/// Applies the result of [`check_all`] on the same records, which must not have changed since.
#[inline]
pub fn apply<R: Record>(
    claims: &mut [Claim<'_, R>],
    summary: CheckSummary,
    toll: Toll,
    situation: &Situation,
) -> Decision {
    let mut decision = Decision::no_rule(situation.band);
    for claim in claims {
        if claim.check.is_refusal() {
            claim.rule.punish(&mut claim.record, &claim.check);
        } else if !summary.refuses {
            let charged = claim.rule.charge(&mut claim.record, toll, &claim.check, situation.now);
            claim.mark = charged.then(|| claim.rule.limit.mark(&claim.record));
        }
        decision.tighten(claim.rule.decision(claim.place, &claim.check, &claim.record, situation));
    }
    decision
}

/// Checks and applies. The caller makes sure that no other thread changes the records in between.
#[inline]
pub fn decide<R: Record>(claims: &mut [Claim<'_, R>], toll: Toll, situation: &Situation) -> Decision {
    let summary = check_all(claims, toll, situation);
    apply(claims, summary, toll, situation)
}

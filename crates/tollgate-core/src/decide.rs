//! Several rules at once: all are looked at, then all are charged or none, and the strictest decides.
//!
//! Charging rule by rule and stopping at the first that refuses would let a refusal by the last rule spend the budget of all before it.

use crate::decision::Decision;
use crate::record::Record;
use crate::rule::{Check, Mode, Rule, Situation};
use crate::toll::Toll;

/// A rule that applies to the request, with the record of the request's key.
pub struct Claim<'rule, R> {
    place: usize,
    rule: &'rule Rule,
    record: R,
    check: Check,
    charged: bool,
}

impl<'rule, R: Record> Claim<'rule, R> {
    /// `rule`, which stands at `place` among the rules, claims a request whose state is `record`.
    #[inline]
    pub fn new(place: usize, rule: &'rule Rule, record: R) -> Self {
        Self { place, rule, record, check: Check::UNSEEN, charged: false }
    }

    /// Where the rule stands.
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Whether the toll was taken, and is to be settled when the request ends.
    pub const fn charged(&self) -> bool {
        self.charged
    }

    /// The record, after [`decide`].
    pub fn into_record(self) -> R {
        self.record
    }
}

/// Decides, and carries the decision out on the records. The caller makes sure that nobody else touches them meanwhile.
#[inline]
pub fn decide<R: Record>(claims: &mut [Claim<'_, R>], toll: Toll, situation: &Situation) -> Decision {
    let mut refused = false;
    for claim in &mut *claims {
        claim.check = claim.rule.check(&claim.record, toll, situation);
        refused |= claim.check.is_refusal() && claim.rule.mode == Mode::Enforce;
    }
    let mut decision = Decision::no_rule(situation.band);
    for claim in claims {
        if claim.check.is_refusal() {
            claim.rule.punish(&mut claim.record, &claim.check);
        } else if !refused {
            claim.charged = claim.rule.charge(&mut claim.record, toll, &claim.check, situation.now);
        }
        decision.tighten(claim.rule.decision(claim.place, &claim.check, &claim.record, situation));
    }
    decision
}

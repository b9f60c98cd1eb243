//! Several rules at once: all are looked at, then all are charged or none, and the strictest decides.
//!
//! Charging rule by rule and stopping at the first that refuses would let a refusal by the last rule spend the budget of all before it.
//! Looking and carrying out are two steps, so that records which many share need to be held only by those who have something to change:
//! a client that hammers at its limit changes nothing.

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
    /// The mark of the charge, if there was one.
    mark: Option<u64>,
}

impl<'rule, R: Record> Claim<'rule, R> {
    /// `rule`, which stands at `place` among the rules, claims a request whose state is `record`.
    #[inline]
    pub fn new(place: usize, rule: &'rule Rule, record: R) -> Self {
        Self { place, rule, record, check: Check::UNSEEN, mark: None }
    }

    /// Where the rule stands.
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Whether the toll was taken, and is to be settled when the request ends.
    pub const fn charged(&self) -> bool {
        self.mark.is_some()
    }

    /// [`Limit::mark`](crate::limit::Limit::mark) of the record right after the charge, if there was one.
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// The record.
    pub const fn record(&self) -> &R {
        &self.record
    }

    /// The record, to be put in order before it is looked at.
    pub const fn record_mut(&mut self) -> &mut R {
        &mut self.record
    }

    /// The record, after [`decide`].
    pub fn into_record(self) -> R {
        self.record
    }
}

/// What all rules together say, before anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    refused: bool,
    changes: bool,
}

impl Outlook {
    /// Whether some rule turns the request away.
    pub const fn refuses(self) -> bool {
        self.refused
    }

    /// Whether carrying it out changes any record.
    pub const fn changes(self) -> bool {
        self.changes
    }
}

/// Looks at all records and changes none.
#[inline]
pub fn look<R: Record>(claims: &mut [Claim<'_, R>], toll: Toll, situation: &Situation) -> Outlook {
    let mut refused = false;
    for claim in &mut *claims {
        claim.check = claim.rule.check(&claim.record, toll, situation);
        refused |= claim.check.is_refusal() && claim.rule.mode == Mode::Enforce;
    }
    let changes = claims.iter().any(|claim| claim.rule.changes(&claim.check, toll, refused));
    Outlook { refused, changes }
}

/// Carries out what [`look`] said of the same claims, on records that are as they were then.
#[inline]
pub fn carry_out<R: Record>(
    claims: &mut [Claim<'_, R>],
    outlook: Outlook,
    toll: Toll,
    situation: &Situation,
) -> Decision {
    let mut decision = Decision::no_rule(situation.band);
    for claim in claims {
        if claim.check.is_refusal() {
            claim.rule.punish(&mut claim.record, &claim.check);
        } else if !outlook.refused {
            let charged = claim.rule.charge(&mut claim.record, toll, &claim.check, situation.now);
            claim.mark = charged.then(|| claim.rule.limit.mark(&claim.record));
        }
        decision.tighten(claim.rule.decision(claim.place, &claim.check, &claim.record, situation));
    }
    decision
}

/// Looks, and carries it out. The caller makes sure that nobody else touches the records meanwhile.
#[inline]
pub fn decide<R: Record>(claims: &mut [Claim<'_, R>], toll: Toll, situation: &Situation) -> Decision {
    let outlook = look(claims, toll, situation);
    carry_out(claims, outlook, toll, situation)
}

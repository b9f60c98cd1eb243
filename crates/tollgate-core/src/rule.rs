//! A rule: the requests that it applies to, the class that gives each of them a key, the limit of each key, and the
//! action on requests over the limit (hold, refuse, block for longer and longer, or only observe).
//!
//! All rules are checked before any of them changes state: [`Rule::check`] is read-only. Then
//! [`Rule::charge`] charges the toll if the request is admitted, or [`Rule::punish`] records a violation for
//! a rule that refused. A refusal by one rule therefore spends nothing of another.

use alloc::string::String;
use alloc::vec::Vec;

use crate::band::Band;
use crate::class::Class;
use crate::condition::Condition;
use crate::decision::{Decision, Reason, Verdict};
use crate::escalation::{self, Escalation, Penalty};
use crate::limit::{Limit, Room};
use crate::record::Record;
use crate::request::Request;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// Whether a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Holds and refuses requests.
    #[default]
    Enforce,
    /// Decides and counts, but admits every request.
    Observe,
}

/// A rule: its condition, its class, its limit and its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name shown to operators.
    pub name: String,
    /// The requests that it applies to.
    pub when: Condition,
    /// The requests among those that are exempt: those that match any of these.
    pub unless: Vec<Condition>,
    /// The property of a request from which its key is computed.
    pub class: Class,
    /// The limit for each key of the class.
    pub limit: Limit,
    /// The penalty for repeated violations; `None` for no penalty beyond the refusal.
    pub escalation: Option<Escalation>,
    /// The length of the warm-up after the start, in which only ceilings apply.
    pub warmup: Option<Span>,
    /// The longest time that a request is held. Longer waits are refused.
    pub hold_max: Span,
    /// Whether it acts.
    pub mode: Mode,
}

/// The state of the gate that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The time of the decision.
    pub now: Moment,
    /// The time at which the warm-up began.
    pub started: Moment,
    /// The load band of the backend.
    pub band: Band,
}

/// The result of checking one rule, before any state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    verdict: Verdict,
    reason: Reason,
    level: u8,
    /// Whether the toll is charged if the request is admitted.
    charges: bool,
    penalty: Option<Penalty>,
}

impl Check {
    /// The check of a rule that has not run yet.
    pub(crate) const UNSEEN: Self =
        Self { verdict: Verdict::Admit, reason: Reason::NoRule, level: 0, charges: false, penalty: None };

    /// Whether this rule alone would refuse the request.
    pub const fn is_refusal(&self) -> bool {
        self.verdict.is_refusal()
    }

    /// Whether the key is in the backoff of an escalation, or enters it with this request.
    fn is_blocked(&self) -> bool {
        self.reason == Reason::InBackoff || self.penalty.is_some()
    }
}

impl Rule {
    /// A rule that enforces `limit` for each key of `class`, for every request.
    pub fn new(name: impl Into<String>, class: Class, limit: Limit) -> Self {
        Self {
            name: name.into(),
            when: Condition::default(),
            unless: Vec::new(),
            class,
            limit,
            escalation: None,
            warmup: None,
            hold_max: Span::ZERO,
            mode: Mode::Enforce,
        }
    }

    /// The number of words in a record of this rule.
    pub fn words(&self) -> usize {
        self.limit.words() + if self.escalation.is_some() { escalation::WORDS } else { 0 }
    }

    /// Whether the rule applies to `request`, given that the request has a key of its class.
    #[inline]
    pub fn applies(&self, request: &impl Request) -> bool {
        if let Some(name) = request.rule_name() {
            return name == self.name;
        }
        self.when.may_hold(request) && !self.unless.iter().any(|unless| unless.must_hold(request))
    }

    /// Whether the rule depends on an account's flag.
    pub fn looks_at_flags(&self) -> bool {
        self.when.flagged.is_some() || self.unless.iter().any(|unless| unless.flagged.is_some())
    }

    /// Checks the rule without changing anything.
    #[inline]
    pub fn check(&self, record: &impl Record, toll: Toll, situation: &Situation) -> Check {
        let now = situation.now;
        let is_warming_up = self.warmup.is_some_and(|warmup| now.since(situation.started) < warmup);
        let room = self.limit.room(record, toll, now);
        let (effective, reason) = match (is_warming_up, room) {
            (false, room) => (room, Reason::OverLimit),
            (true, Room::Now) => (Room::Now, Reason::OverLimit),
            (true, _) => (self.limit.room_under_ceiling(record, toll, now), Reason::Ceiling),
        };
        let (verdict, reason, charges) = match effective {
            Room::Now if room == Room::Now => (Verdict::Admit, Reason::WithinLimit, true),
            // Windows and in-flight limits count the requests that the ceiling admits. Other limits run up no
            // debt while they are not enforced.
            Room::Now => (Verdict::Admit, Reason::WarmUp, matches!(self.limit, Limit::Window(_) | Limit::InFlight(_))),
            Room::From(moment) if !is_warming_up && moment.since(now) <= self.hold_max => {
                (Verdict::Hold(moment), Reason::OverLimit, true)
            }
            Room::From(moment) => (Verdict::Refuse(moment), reason, false),
            Room::OnRelease => (Verdict::RefuseUntilRelease, Reason::Busy, false),
            Room::Never => (Verdict::RefuseForGood, Reason::TooLarge, false),
        };
        let mut check = Check { verdict, reason, level: 0, charges, penalty: None };
        if let Some(escalation) = &self.escalation {
            let band = if is_warming_up { Band::Normal } else { situation.band };
            self.escalate(&mut check, escalation, record, band, now);
            // A toll with a count of 0 only checks, so it is no violation.
            check.penalty = check.penalty.filter(|_| toll.count > 0);
        }
        check
    }

    /// Adds the block of earlier violations to `check`, or else the penalty of this one.
    fn escalate(&self, check: &mut Check, escalation: &Escalation, record: &impl Record, band: Band, now: Moment) {
        let at = self.limit.words();
        let blocked_until = escalation.blocked_until(record, at);
        check.level = escalation.level(record, at, now);
        if now < blocked_until {
            // A wait for the end of the backoff alone would be too short if the limit has no room even then.
            let room_from = match check.verdict {
                Verdict::Hold(moment) | Verdict::Refuse(moment) => moment,
                _ => blocked_until,
            };
            check.reason = Reason::InBackoff;
            check.verdict = check.verdict.max(Verdict::Refuse(blocked_until.max(room_from)));
        } else if let Verdict::Refuse(room_from) = check.verdict {
            let penalty = escalation.penalty(record, at, band, room_from, now);
            check.verdict = Verdict::Refuse(penalty.blocked_until);
            check.level = penalty.level;
            check.penalty = Some(penalty);
        }
    }

    /// Charges the toll of an admitted request. Returns whether it must be settled, also if this toll is free.
    #[inline]
    pub fn charge(&self, record: &mut impl Record, toll: Toll, check: &Check, now: Moment) -> bool {
        if check.charges && !self.limit.is_free(toll) {
            match check.verdict {
                Verdict::Hold(until) => self.limit.charge_held(record, toll, until, now),
                _ => self.limit.charge(record, toll, now),
            }
        }
        check.charges
    }

    /// Whether applying `check` changes the record; `refused`: some rule refuses the request.
    #[inline]
    pub(crate) fn changes(&self, check: &Check, toll: Toll, refused: bool) -> bool {
        if check.is_refusal() {
            check.penalty.is_some()
        } else {
            !refused && check.charges && !self.limit.is_free(toll)
        }
    }

    /// Records the penalty of a request that this rule refused, if that was a violation.
    pub fn punish(&self, record: &mut impl Record, check: &Check) {
        if let (Some(escalation), Some(penalty)) = (&self.escalation, check.penalty) {
            escalation.punish(record, self.limit.words(), penalty);
        }
    }

    /// Takes over a block from another copy of the same key's state, if it ends more than 1 ms later than the one here.
    /// Returns whether it does. The other copy announces the same block again with each refusal, at slightly different
    /// times.
    pub fn block(&self, record: &mut impl Record, level: u8, blocked_until: Moment) -> bool {
        let Some(escalation) = &self.escalation else { return false };
        let at = self.limit.words();
        let known = escalation.blocked_until(record, at) + Span::from_millis(1);
        let is_news = known < blocked_until;
        if is_news {
            let wait_us = escalation.wait_us(record, at);
            escalation.punish(record, at, Penalty { level, wait_us, blocked_until });
        }
        is_news
    }

    /// The decision that `check` leads to, with the current state of `record`; `place` is the index of the rule.
    #[inline]
    pub fn decision(&self, place: usize, check: &Check, record: &impl Record, situation: &Situation) -> Decision {
        let now = situation.now;
        let mut info = self.limit.info(record, now);
        let (verdict, reason) = match (self.mode, check.verdict) {
            (Mode::Enforce, verdict) => (verdict, check.reason),
            (Mode::Observe, Verdict::Admit) => (Verdict::Admit, check.reason),
            (Mode::Observe, Verdict::Hold(_)) => (Verdict::Admit, Reason::WouldHold),
            (Mode::Observe, _) => (Verdict::Admit, Reason::WouldRefuse),
        };
        info.reset = info.reset.max(verdict.retry_after(now));
        if verdict.is_refusal() && check.is_blocked() {
            // The limit may have room, but a blocked key can use none of it.
            info.remaining = 0;
            info.clear = info.clear.max(info.reset);
        }
        Decision { verdict, reason, rule: Some(place), info: Some(info), level: check.level, band: situation.band }
    }

    /// Tightens `into` so that it never leaves more room than `from`, now or later. One record can then stand
    /// for many keys that a table has no room for, without an advantage for any of them.
    pub fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        self.limit.absorb(into, from);
        if let Some(escalation) = &self.escalation {
            escalation.absorb(into, from, self.limit.words());
        }
    }

    /// The time from which the record equals a fresh one, so that it can be dropped.
    #[inline]
    pub fn clear_at(&self, record: &impl Record) -> Moment {
        let limit = self.limit.clear_at(record);
        match &self.escalation {
            Some(escalation) => limit.max(escalation.clear_at(record, self.limit.words())),
            None => limit,
        }
    }
}

//! When it applies, who is told apart, one limit, and what to do.
//!
//! A rule is looked at first ([`Rule::check`], which changes nothing) and carried out afterwards, when all rules have been looked at:
//! [`Rule::charge`] if the request goes on, [`Rule::punish`] if this rule turned it away. So a refusal by one rule spends nothing
//! of another.

use alloc::string::String;

use crate::band::Band;
use crate::class::Class;
use crate::condition::Condition;
use crate::decision::{Decision, Reason, Verdict};
use crate::escalation::{self, Escalation, Penalty};
use crate::limit::{Limit, LimitInfo, Room};
use crate::record::Record;
use crate::request::Request;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// Whether a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It holds and refuses.
    #[default]
    Enforce,
    /// It decides and counts, and lets pass.
    Observe,
}

/// When it applies, who is told apart, one limit, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What people call it.
    pub name: String,
    /// Requests that it applies to.
    pub when: Condition,
    /// Requests among those that it does not apply to.
    pub unless: Option<Condition>,
    /// How callers are told apart.
    pub class: Class,
    /// What each caller may have.
    pub limit: Limit,
    /// How the penalty of repeated violations grows.
    pub escalation: Option<Escalation>,
    /// How long after the start only ceilings apply.
    pub warmup: Option<Span>,
    /// The longest that a request is held; longer waits are refused.
    pub hold_max: Span,
    /// Whether it acts.
    pub mode: Mode,
}

/// The circumstances of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The moment of the decision.
    pub now: Moment,
    /// When warm-up began.
    pub started: Moment,
    /// How loaded the backend is.
    pub band: Band,
}

/// What one rule says, before anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    verdict: Verdict,
    reason: Reason,
    level: u8,
    /// Whether the toll is charged if the request goes on.
    charges: bool,
    penalty: Option<Penalty>,
}

impl Check {
    /// Whether this rule alone would turn the request away.
    pub const fn is_refusal(&self) -> bool {
        self.verdict.is_refusal()
    }
}

impl Rule {
    /// How many words a record of this rule has.
    pub fn words(&self) -> usize {
        self.limit.words() + if self.escalation.is_some() { escalation::WORDS } else { 0 }
    }

    /// Whether the rule applies to `request`, given that the request has a key of its class.
    #[inline]
    pub fn applies(&self, request: &impl Request) -> bool {
        self.when.may_hold(request) && !self.unless.as_ref().is_some_and(|unless| unless.must_hold(request))
    }

    /// Whether the rule looks at the flag of an account.
    pub fn looks_at_flags(&self) -> bool {
        self.when.flagged.is_some() || self.unless.as_ref().is_some_and(|unless| unless.flagged.is_some())
    }

    /// What this rule says. Changes nothing.
    #[inline]
    pub fn check(&self, record: &impl Record, toll: Toll, situation: &Situation) -> Check {
        let now = situation.now;
        let warm = self.warmup.is_some_and(|warmup| now.since(situation.started) < warmup);
        let room = self.limit.room(record, toll, now);
        let (effective, reason) = match (warm, room) {
            (false, room) => (room, Reason::OverLimit),
            (true, Room::Now) => (Room::Now, Reason::OverLimit),
            (true, _) => (self.limit.room_under_ceiling(record, toll, now), Reason::Ceiling),
        };
        let mut check = match effective {
            Room::Now if room == Room::Now => Check::admit(Reason::WithinLimit, true),
            // A log takes what the ceiling lets through; other limits do not run into debt while they are not enforced.
            Room::Now => Check::admit(Reason::WarmUp, matches!(self.limit, Limit::Window(_) | Limit::InFlight(_))),
            Room::From(moment) if !warm && moment.since(now) <= self.hold_max => Check::hold(moment),
            Room::From(moment) => Check::refuse(Verdict::Refuse(moment), reason),
            Room::OnRelease => Check::refuse(Verdict::RefuseUntilRelease, Reason::Busy),
            Room::Never => Check::refuse(Verdict::RefuseForGood, Reason::TooLarge),
        };
        if let Some(escalation) = &self.escalation {
            let band = if warm { Band::Normal } else { situation.band };
            self.escalate(&mut check, escalation, record, band, now);
            // Who only looks violates nothing.
            check.penalty = check.penalty.filter(|_| toll.count > 0);
        }
        check
    }

    /// Adds what earlier violations lead to, and what this one does.
    fn escalate(&self, check: &mut Check, escalation: &Escalation, record: &impl Record, band: Band, now: Moment) {
        let at = self.limit.words();
        let blocked_until = escalation.blocked_until(record, at);
        check.level = escalation.level(record, at, now);
        if now < blocked_until {
            // Waiting for the backoff alone would not be honest if the limit has no room even then.
            let room_from = match check.verdict {
                Verdict::Hold(moment) | Verdict::Refuse(moment) => moment,
                _ => blocked_until,
            };
            check.reason = Reason::InBackoff;
            check.verdict = check.verdict.max(Verdict::Refuse(blocked_until.max(room_from)));
        } else if let Verdict::Refuse(room_from) = check.verdict {
            // The block lasts as long as was announced: a try before that must not count as another violation.
            let mut penalty = escalation.penalty(record, at, band, now);
            penalty.blocked_until = penalty.blocked_until.max(room_from);
            check.verdict = Verdict::Refuse(penalty.blocked_until);
            check.level = penalty.level;
            check.penalty = Some(penalty);
        }
    }

    /// The request goes on: takes the toll, and says whether there was one to take.
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

    /// Whether carrying `check` out changes the record, given what all rules together say.
    #[inline]
    pub(crate) fn changes(&self, check: &Check, toll: Toll, refused: bool) -> bool {
        if check.is_refusal() {
            check.penalty.is_some()
        } else {
            !refused && check.charges && !self.limit.is_free(toll)
        }
    }

    /// This rule turns the request away: raises its level, if this was a violation.
    pub fn punish(&self, record: &mut impl Record, check: &Check) {
        if let (Some(escalation), Some(penalty)) = (&self.escalation, check.penalty) {
            escalation.punish(record, self.limit.words(), penalty);
        }
    }

    /// Another keeper of the same key's state blocks it until a moment, at a level: takes that over, if it is more than is known here, and says
    /// whether it is. Anything finer than a millisecond is not worth a change.
    pub fn block(&self, record: &mut impl Record, level: u8, blocked_until: Moment) -> bool {
        let Some(escalation) = &self.escalation else { return false };
        let at = self.limit.words();
        let known = escalation.blocked_until(record, at) + Span::from_millis(1);
        let is_news = known < blocked_until;
        if is_news {
            escalation.punish(record, at, Penalty { level, blocked_until });
        }
        is_news
    }

    /// What `check` amounts to as a decision, with the figures of `record` as it is now.
    #[inline]
    pub fn decision(&self, place: usize, check: &Check, record: &impl Record, situation: &Situation) -> Decision {
        let now = situation.now;
        let info = self.limit.info(record, now);
        let (verdict, reason) = match (self.mode, check.verdict) {
            (Mode::Enforce, verdict) => (verdict, check.reason),
            (Mode::Observe, Verdict::Admit) => (Verdict::Admit, check.reason),
            (Mode::Observe, Verdict::Hold(_)) => (Verdict::Admit, Reason::WouldHold),
            (Mode::Observe, _) => (Verdict::Admit, Reason::WouldRefuse),
        };
        let reset = info.reset.max(verdict.retry_after(now));
        Decision {
            verdict,
            reason,
            rule: Some(place),
            info: Some(LimitInfo { reset, ..info }),
            level: check.level,
            band: situation.band,
        }
    }

    /// Worsens `into` until it leaves no more, now or at any later moment, than `from` does. So one record can stand for many that a
    /// table had no room for, and none of those keys gains by it.
    pub fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        self.limit.absorb(into, from);
        if let Some(escalation) = &self.escalation {
            escalation.absorb(into, from, self.limit.words());
        }
    }

    /// From this moment on the record is as good as a fresh one: dropping it loses nothing.
    #[inline]
    pub fn clear_at(&self, record: &impl Record) -> Moment {
        let limit = self.limit.clear_at(record);
        match &self.escalation {
            Some(escalation) => limit.max(escalation.clear_at(record, self.limit.words())),
            None => limit,
        }
    }
}

impl Check {
    /// What a rule says that was not asked yet.
    pub(crate) const UNSEEN: Self = Self::admit(Reason::NoRule, false);

    const fn admit(reason: Reason, charges: bool) -> Self {
        Self { verdict: Verdict::Admit, reason, level: 0, charges, penalty: None }
    }

    const fn hold(until: Moment) -> Self {
        Self { verdict: Verdict::Hold(until), reason: Reason::OverLimit, level: 0, charges: true, penalty: None }
    }

    const fn refuse(verdict: Verdict, reason: Reason) -> Self {
        Self { verdict, reason, level: 0, charges: false, penalty: None }
    }
}

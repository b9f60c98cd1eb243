//! Turns the replies of the script, which decides in the store, into decisions.
//!
//! The script returns the time of the decision, whether the request is admitted, and the states that it
//! found. The core computes everything else from the same states at the same moment, so there is no second
//! implementation of limits and reasons that could diverge. If the two disagree about the outcome, the answer
//! is rejected.

use redis::Value;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::limit::{Charge, Limit};
use tollgate_core::record::{PlainRecord, Record};
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use super::Unanswered;
use super::rule::kind;

/// The length of the head before the numbers of a limit: tag, time of writing, end of the block with its
/// nanoseconds, and level with its wait.
const HEAD_LENGTH: usize = 2 + 4 * 8;
/// The length of the short head of a state that was never blocked, for limits without a log: tag and time of writing.
const SHORT_HEAD_LENGTH: usize = 2 + 8;
/// The length of such a state.
const SHORT_LENGTH: usize = SHORT_HEAD_LENGTH + 3 * 8;
const NANOS_PER_MICRO: u64 = 1_000;
const MICROS_PER_SEC: u64 = 1_000_000;

/// A decision of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The combined decision of all shared rules, on the store's clock.
    pub decision: Decision,
    /// The time of the decision on the store's clock.
    pub now: Moment,
}

impl Answer {
    /// The decision on the clock of a caller that received the answer at `now`. Waits keep their length.
    pub fn on_clock(&self, now: Moment) -> Decision {
        let moved = |moment: Moment| now + moment.since(self.now);
        let verdict = match self.decision.verdict {
            Verdict::Hold(until) => Verdict::Hold(moved(until)),
            Verdict::Refuse(from) => Verdict::Refuse(moved(from)),
            verdict @ (Verdict::Admit | Verdict::RefuseUntilRelease | Verdict::RefuseForGood) => verdict,
        };
        Decision { verdict, ..self.decision }
    }
}

/// The reason why a reply is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyError {
    /// The errand with this index found a value of other software.
    Foreign(usize),
    /// The call ran after its deadline, at this time on the store's clock.
    Late(Moment),
    /// The reply is not one of the script.
    Garbled,
}

/// The script's outcome for a call that ran after its deadline.
const LATE: i64 = 2;

/// The number in an integer or text reply.
fn number_of(value: Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(number),
        Value::BulkString(text) => core::str::from_utf8(&text).ok()?.parse().ok(),
        _ => None,
    }
}

/// A parsed reply of the script.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    /// The time of the decision on the store's clock.
    pub(super) now: Moment,
    /// Whether the script admitted the request.
    pub(super) is_admitted: bool,
    /// The state that the script found for each claim, before any charge.
    states: Vec<Option<Vec<u8>>>,
}

impl Reply {
    /// Parses the reply to several requests; `claims` is the number of claims of each. An error in one does not affect
    /// the others.
    pub(super) fn parse(value: Value, claims: impl ExactSizeIterator<Item = usize>) -> Vec<Result<Self, ReplyError>> {
        let requests = claims.len();
        Self::parse_all(value, claims).unwrap_or_else(|| (0..requests).map(|_| Err(ReplyError::Garbled)).collect())
    }

    fn parse_all(value: Value, claims: impl Iterator<Item = usize>) -> Option<Vec<Result<Self, ReplyError>>> {
        let Value::Array(items) = value else { return None };
        let mut items = items.into_iter();
        let (secs, micros) =
            (u64::try_from(number_of(items.next()?)?).ok()?, u64::try_from(number_of(items.next()?)?).ok()?);
        let micros = secs.saturating_mul(MICROS_PER_SEC).saturating_add(micros);
        let now = Moment::from_nanos(micros.saturating_mul(NANOS_PER_MICRO));
        let mut replies = Vec::new();
        for count in claims {
            let outcome = number_of(items.next()?)?;
            let state = |item| match item {
                Value::Nil => Some(None),
                Value::BulkString(state) => Some(Some(state)),
                _ => None,
            };
            let states: Vec<_> = items.by_ref().take(count).map(state).collect::<Option<_>>()?;
            if outcome == LATE {
                replies.push(Err(ReplyError::Late(now)));
                continue;
            }
            let foreign = outcome.checked_neg().and_then(|errand| usize::try_from(errand.checked_sub(1)?).ok());
            replies.push(match foreign {
                Some(errand) => Err(ReplyError::Foreign(errand)),
                None if states.len() == count => Ok(Self { now, is_admitted: outcome == 1, states }),
                None => return None,
            });
        }
        Some(replies)
    }

    /// The core's decision on the states that the script found, and the charge of each rule, if any.
    pub(super) fn answer(
        &self,
        rules: &[(usize, &Rule)],
        toll: Toll,
        asked: &Situation,
    ) -> Result<(Answer, Vec<Option<Charge>>), Unanswered> {
        let mut claims = Vec::with_capacity(rules.len());
        for (place, rule, record) in self.records(rules)? {
            claims.push(Claim::new(place, rule, record));
        }
        let decision = decide(&mut claims, toll, &self.situation(asked));
        if decision.verdict.is_refusal() == self.is_admitted {
            return Err(Unanswered::Garbled);
        }
        let charged = |claim: &Claim<'_, _>| claim.mark.map(|mark| Charge { at: self.now, mark });
        Ok((Answer { decision, now: self.now }, claims.iter().map(charged).collect()))
    }

    /// For each claim, whether the script found a state.
    pub(super) fn known(&self) -> impl Iterator<Item = bool> {
        self.states.iter().map(Option::is_some)
    }

    /// The decision of each rule on the state that the script found, with its index.
    pub(super) fn explain(
        &self,
        rules: &[(usize, &Rule)],
        toll: Toll,
        asked: &Situation,
    ) -> Result<Vec<(usize, Answer)>, Unanswered> {
        let situation = self.situation(asked);
        let explain = |(place, rule, record): (usize, &Rule, PlainRecord)| {
            let check = rule.check(&record, toll, &situation);
            (place, Answer { decision: rule.decision(place, &check, &record, &situation), now: self.now })
        };
        Ok(self.records(rules)?.into_iter().map(explain).collect())
    }

    /// The core's records for the states that the script found.
    fn records<'rule>(
        &self,
        rules: &[(usize, &'rule Rule)],
    ) -> Result<Vec<(usize, &'rule Rule, PlainRecord)>, Unanswered> {
        if self.states.len() != rules.len() {
            return Err(Unanswered::Garbled);
        }
        let record = |((place, rule), state): (&(usize, &'rule Rule), &Option<Vec<u8>>)| {
            let record = record(rule, state.as_deref(), self.now).ok_or(Unanswered::Garbled)?;
            Ok((*place, *rule, record))
        };
        rules.iter().zip(&self.states).map(record).collect()
    }

    /// The situation on the store's clock. The warm-up has progressed as far as on the gate's clock.
    fn situation(&self, asked: &Situation) -> Situation {
        Situation { now: self.now, started: self.now.before(asked.now.since(asked.started)), band: asked.band }
    }
}

/// The core's record for a `state` of the script, whose format is in `script.lua`; `None` if it is invalid.
fn record(rule: &Rule, state: Option<&[u8]>, now: Moment) -> Option<PlainRecord> {
    let mut record = PlainRecord::new(rule.words());
    let Some(state) = state else { return Some(record) };
    let is_short = state.len() == SHORT_LENGTH && !matches!(rule.limit, Limit::Window(_) | Limit::InFlight(_));
    let (head, body) = state.split_at_checked(if is_short { SHORT_HEAD_LENGTH } else { HEAD_LENGTH })?;
    let (tag, head) = head.split_at(2);
    if tag != [b't', kind(&rule.limit)] {
        return None;
    }
    if rule.escalation.is_some() && !is_short {
        let (blocked, blocked_ns, level) = (number(head, 1)?, number(head, 2)?, number(head, 3)?);
        let at = rule.words() - 2;
        record.set_word(at, blocked.saturating_mul(NANOS_PER_MICRO).saturating_add(blocked_ns));
        record.set_word(at + 1, level);
    }
    match &rule.limit {
        Limit::Rate(_) | Limit::Budget(_) => {
            let (us, rest, (_, per)) = (number(body, 0)?, number(body, 1)?, rule.limit.pace());
            record.set_word(0, us.saturating_mul(NANOS_PER_MICRO).saturating_add(rest / per));
            record.set_aux((rest % per) as u32);
        }
        Limit::Bucket(_) => {
            record.set_word(0, number(body, 0)?.saturating_mul(NANOS_PER_MICRO));
            record.set_aux(u32::try_from(number(body, 1)?).ok()?);
        }
        Limit::Window(_) => {
            let length = body.len() / 8;
            if length > rule.limit.words() {
                return None;
            }
            for index in 0..length {
                record.set_word(index, number(body, index)?.saturating_mul(NANOS_PER_MICRO));
            }
            record.set_aux(length as u32);
        }
        Limit::InFlight(_) => {
            let mut in_flight = 0_u32;
            for entry in 0..body.len() / 16 {
                let until = number(body, 2 * entry + 1)?;
                in_flight += u32::from(Moment::from_nanos(until.saturating_mul(NANOS_PER_MICRO)) > now);
            }
            record.set_aux(in_flight);
        }
    }
    Some(record)
}

/// The number at `index`, a double that the script has checked to be an integer.
fn number(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(index * 8..index * 8 + 8)?;
    Some(f64::from_le_bytes(bytes.try_into().ok()?) as u64)
}

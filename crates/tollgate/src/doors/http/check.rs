//! `POST /v1/check`: decides on a request that the caller serves.
//!
//! A check names a rule and a key, or describes a request by its attributes. The response has the decision and a
//! ticket, with which `POST /v1/report` settles the request at its end. The response to an array of checks is an array.

use serde_json::json;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::Factor;
use tollgate_core::request::Request;
use tollgate_core::time::Span;

use super::answer::CheckAnswer;
use super::check_json::{Check, Checks, Text};
use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use crate::doors::metrics::Count;
use crate::doors::request::DescribedRequest;
use crate::doors::station::Station;
use crate::gate::{Inquiry, NoRuling, OnHold, Ruling};
use crate::settings::DEFAULT_DOMAIN;

/// Maximum number of requests that one check can count as.
const TOLL_MAX: u64 = 1_000_000_000;
/// Maximum expected or reported CPU time, in milliseconds: one hour.
pub(super) const TOLL_MS_MAX: f64 = 3_600_000.0;
/// Maximum deadline of a ticket, in milliseconds: one hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;
/// Maximum factor: the largest that a limit can be scaled by.
const FACTOR_MAX: f64 = 1_000_000.0;

/// Responds to a call with one check or several.
pub(super) async fn check(station: &Station, bytes: &[u8], reply: &mut DoorReply) -> Result<(), DoorProblem> {
    match Checks::parse(bytes).map_err(DoorProblem::malformed)? {
        Checks::One(check) => decide(station, &check).await?.write_reply(reply),
        Checks::Many(checks) => {
            // A call with an invalid check is not charged at all.
            for check in &checks {
                check.inquiry()?;
                check.request()?;
            }
            reply.body.push(b'[');
            for (index, check) in checks.iter().enumerate() {
                if index > 0 {
                    reply.body.extend_from_slice(b", ");
                }
                match decide(station, check).await {
                    Ok(answer) => answer.write(&mut reply.body),
                    Err(problem) => reply.body.extend(format!("{{\"error\": {}}}", json!(problem.detail)).bytes()),
                }
            }
            reply.json(|out| out.push(b']'));
        }
    }
    Ok(())
}

impl Check<'_> {
    /// The request that the check describes.
    fn request(&self) -> Result<DescribedRequest<'_>, DoorProblem> {
        let (rule, key) = (self.rule.as_ref().map(|rule| &*rule.0), self.key.as_ref().map(|key| &*key.0));
        if key.is_some() && rule.is_none() {
            return Err(DoorProblem::malformed(
                "a `key` is the key of a `rule`: name the rule, or describe `attributes`",
            ));
        }
        DescribedRequest::new(rule, key, &self.attributes.0).map_err(DoorProblem::malformed)
    }

    /// The parameters of the decision. An error if a field is out of range.
    fn inquiry(&self) -> Result<Inquiry<'_>, DoorProblem> {
        let domain = self.domain.as_ref().map_or(DEFAULT_DOMAIN, |domain| &domain.0);
        let count = self.toll.unwrap_or(1);
        if count > TOLL_MAX {
            return Err(DoorProblem::malformed(format!("`toll` is above {TOLL_MAX}")));
        }
        if self.deadline_ms.is_some_and(|millis| !(1..=DEADLINE_MS_MAX).contains(&millis)) {
            return Err(DoorProblem::malformed(format!("`deadline_ms` is not from 1 to {DEADLINE_MS_MAX}")));
        }
        if self.queue && count == 0 {
            return Err(DoorProblem::malformed("a check with the `toll` 0 charges nothing and cannot use the `queue`"));
        }
        let cpu = self.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
        let on_hold = match (self.hold.unwrap_or(true), self.queue) {
            (false, _) => OnHold::Refuse,
            (true, false) => OnHold::Report,
            // With `queue`, the caller waits for the response until the request may start.
            (true, true) => OnHold::Wait,
        };
        Ok(Inquiry { domain, count, cpu, factor: self.factor()?, has_key: self.key.is_some(), on_hold })
    }

    /// The factor that scales the limits. None for 1, and for 0, which means no limit ([`Self::is_unlimited`]).
    fn factor(&self) -> Result<Option<Factor>, DoorProblem> {
        let Some(factor) = self.factor.filter(|factor| *factor != 1.0 && *factor != 0.0) else { return Ok(None) };
        if !(0.001..=FACTOR_MAX).contains(&factor) {
            return Err(DoorProblem::malformed(format!("`factor` is neither 0 nor from 0.001 to {FACTOR_MAX}")));
        }
        let thousandths = (factor * 1000.0).round() as u32;
        Factor::new(thousandths).map(Some).map_err(|_| DoorProblem::malformed("`factor` is too small"))
    }

    fn is_unlimited(&self) -> bool {
        self.factor == Some(0.0)
    }
}

/// Converts the milliseconds of CPU time in a call.
pub(super) fn cpu_of(millis: f64, name: &str) -> Result<Span, DoorProblem> {
    if (0.0..=TOLL_MS_MAX).contains(&millis) {
        return Ok(Span::from_nanos((millis * 1e6).round() as u64));
    }
    Err(DoorProblem::malformed(format!("`{name}` is not from 0 to {TOLL_MS_MAX}")))
}

/// Decides on one check. An admitted request gets a ticket, unless it charges nothing.
async fn decide(station: &Station, check: &Check<'_>) -> Result<CheckAnswer, DoorProblem> {
    let (inquiry, request) = (check.inquiry()?, check.request()?);
    if check.is_unlimited() {
        station.count(Count::Admitted);
        return Ok(CheckAnswer::unlimited(request.rule_name()));
    }
    let since = station.decider.now();
    let client = match check.queue {
        true => {
            Some(request.client().ok_or_else(|| DoorProblem::malformed("the `queue` needs the attribute `client`"))?)
        }
        false => None,
    };
    let ruling = station.decider.decide(inquiry, &request).await.map_err(|why| no_ruling(why, check))?;
    station.count(count_of(&ruling));
    let mut answer = CheckAnswer::of(&ruling);
    if !ruling.decision.verdict.is_refusal() && inquiry.count > 0 {
        let is_open = ruling.is_open() || client.is_some();
        let mut ticket = ruling.ticket();
        if let Some(client) = client {
            answer.admit_after_hold();
            if let Err(refusal) = station.decider.take_permit(&mut ticket, client, &request).await {
                station.count(Count::Refused);
                return Ok(answer.refused_by_queue(&refusal));
            }
        }
        station.decider.account(&mut ticket, &request, since);
        answer.ticket = Some(station.keep(ticket, is_open, check.deadline_ms.map(Span::from_millis)));
    }
    Ok(answer)
}

fn count_of(ruling: &Ruling) -> Count {
    match ruling.decision.verdict {
        Verdict::Admit => Count::Admitted,
        Verdict::Hold(_) => Count::Held,
        _ => Count::Refused,
    }
}

/// The error response to a check that cannot be decided.
fn no_ruling(why: NoRuling, check: &Check<'_>) -> DoorProblem {
    let named = |text: &Option<Text<'_>>| text.as_ref().map_or_else(String::new, |text| format!(" `{}`", text.0));
    match why {
        NoRuling::UnknownDomain => DoorProblem::unknown(format!("there is no domain{}", named(&check.domain))),
        NoRuling::UnknownRule => DoorProblem::unknown(format!("the domain has no rule{}", named(&check.rule))),
        NoRuling::NoKey if check.key.is_some() => DoorProblem::malformed(format!(
            "the `key` is no key of the class of the rule{}: a class `ip/*` needs an address, and a class of several \
             parts needs `attributes`",
            named(&check.rule)
        )),
        NoRuling::NoKey => DoorProblem::malformed(format!(
            "the request has no key of the class of the rule{}: send `key` if the class has one part, else its \
             `attributes`",
            named(&check.rule)
        )),
        NoRuling::FactorOnRedis => {
            DoorProblem::impossible("a rule that applies has `state = \"redis\"`, which has no `factor`: leave it out")
        }
        NoRuling::FactorOutOfRange => DoorProblem::impossible("the limit cannot be scaled by this `factor`: change it"),
    }
}

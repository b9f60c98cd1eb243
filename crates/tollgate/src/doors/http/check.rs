//! `POST /v1/check`: may this request go on?
//!
//! A check names a rule and a caller's key, or describes a request by its attributes; an array of checks is answered by an array. The answer has the fields of
//! a decision, those of Sharkey's LimitInfo and a ticket, which `POST /v1/report` settles.

use http::Response;
use hyper::body::Incoming;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::Factor;
use tollgate_core::request::Request;
use tollgate_core::time::Span;

use super::answer::Answer;
use super::body::{self, Whole};
use super::check_json::{Check, Checks, Text};
use super::problem::Problem;
use crate::doors::metrics::Count;
use crate::doors::request::DescribedRequest;
use crate::doors::station::Station;
use crate::gate::{Inquiry, NoRuling, Ruling};
use crate::settings::DEFAULT_DOMAIN;

/// The most requests that one check may count as.
const TOLL_MAX: u64 = 1_000_000_000;
/// The longest CPU time that is expected or reported, in milliseconds: one hour.
pub(super) const TOLL_MS_MAX: f64 = 3_600_000.0;
/// The longest time that a ticket is kept, in milliseconds: one hour.
const DEADLINE_MS_MAX: u64 = 3_600_000;
/// The largest factor, as far as limits can be scaled.
const FACTOR_MAX: f64 = 1_000_000.0;

/// Answers a call.
pub(super) async fn check(station: &Station, body: Incoming) -> Result<Response<Whole>, Problem> {
    let bytes = body::read(body).await?;
    match Checks::parse(&bytes).map_err(Problem::malformed)? {
        Checks::One(check) => Ok(decide(station, &check).await?.response()),
        Checks::Many(checks) => {
            // Nothing is charged for a call of which a part is wrong.
            for check in &checks {
                check.inquiry()?;
                check.request()?;
            }
            let mut out = vec![b'['];
            for (index, check) in checks.iter().enumerate() {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                match decide(station, check).await {
                    Ok(answer) => answer.write(&mut out),
                    Err(problem) => problem.write(&mut out),
                }
            }
            out.push(b']');
            Ok(super::answer::json(out))
        }
    }
}

impl Check<'_> {
    fn request(&self) -> Result<DescribedRequest<'_>, Problem> {
        let (rule, key) = (self.rule.as_ref().map(|rule| &*rule.0), self.key.as_ref().map(|key| &*key.0));
        if key.is_some() && rule.is_none() {
            return Err(Problem::malformed("a `key` is the key of a `rule`: name the rule, or describe `attributes`"));
        }
        DescribedRequest::new(rule, key, &self.attributes.0).map_err(Problem::malformed)
    }

    fn inquiry(&self) -> Result<Inquiry<'_>, Problem> {
        let domain = self.domain.as_ref().map_or(DEFAULT_DOMAIN, |domain| &domain.0);
        let count = self.toll.unwrap_or(1);
        if count > TOLL_MAX {
            return Err(Problem::malformed(format!("`toll` is above {TOLL_MAX}")));
        }
        if self.deadline_ms.is_some_and(|millis| !(1..=DEADLINE_MS_MAX).contains(&millis)) {
            return Err(Problem::malformed(format!("`deadline_ms` is not from 1 to {DEADLINE_MS_MAX}")));
        }
        if self.queue && count == 0 {
            return Err(Problem::malformed("a check with the `toll` 0 only looks, and takes no permit of the `queue`"));
        }
        let cpu = self.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
        let (has_key, may_hold) = (self.key.is_some(), self.hold.unwrap_or(true));
        Ok(Inquiry { domain, count, cpu, factor: self.factor()?, has_key, may_hold })
    }

    /// The factor, unless it is 1.
    fn factor(&self) -> Result<Option<Factor>, Problem> {
        let Some(factor) = self.factor.filter(|factor| *factor != 1.0 && *factor != 0.0) else { return Ok(None) };
        if !(0.001..=FACTOR_MAX).contains(&factor) {
            return Err(Problem::malformed(format!("`factor` is neither 0 nor from 0.001 to {FACTOR_MAX}")));
        }
        let thousandths = (factor * 1000.0).round() as u32;
        Factor::new(thousandths).map(Some).map_err(|_| Problem::malformed("`factor` is too small"))
    }

    fn is_unlimited(&self) -> bool {
        self.factor == Some(0.0)
    }
}

/// CPU time in milliseconds, as calls write it.
pub(super) fn cpu_of(millis: f64, name: &str) -> Result<Span, Problem> {
    if (0.0..=TOLL_MS_MAX).contains(&millis) {
        return Ok(Span::from_nanos((millis * 1e6).round() as u64));
    }
    Err(Problem::malformed(format!("`{name}` is not from 0 to {TOLL_MS_MAX}")))
}

async fn decide(station: &Station, check: &Check<'_>) -> Result<Answer, Problem> {
    let (inquiry, request) = (check.inquiry()?, check.request()?);
    if check.is_unlimited() {
        station.count(Count::Admitted);
        return Ok(Answer::unlimited(request.rule_name()));
    }
    let since = station.decider.now();
    let client = match check.queue {
        true => Some(request.client().ok_or_else(|| Problem::malformed("the `queue` needs the attribute `client`"))?),
        false => None,
    };
    let mut ruling = station.decider.decide(inquiry, &request).await.map_err(|why| no_ruling(why, check))?;
    if client.is_some() {
        // The caller waits for this answer until it may go on.
        station.decider.wait(&mut ruling, &request).await;
    }
    station.count(count_of(&ruling));
    let mut answer = Answer::of(&ruling);
    if !ruling.decision.verdict.is_refusal() && inquiry.count > 0 {
        let is_open = ruling.is_open() || client.is_some();
        let mut ticket = ruling.ticket();
        if let Some(client) = client {
            answer.goes_on();
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

fn no_ruling(why: NoRuling, check: &Check<'_>) -> Problem {
    let named = |text: &Option<Text<'_>>| text.as_ref().map_or_else(String::new, |text| format!(" `{}`", text.0));
    match why {
        NoRuling::UnknownDomain => Problem::unknown(format!("there is no domain{}", named(&check.domain))),
        NoRuling::UnknownRule => Problem::unknown(format!("the domain has no rule{}", named(&check.rule))),
        NoRuling::NoKey => Problem::malformed(format!(
            "the request has no key of the class of the rule{}: give `key` if the class has one part, else its `attributes`",
            named(&check.rule)
        )),
        NoRuling::FactorOnRedis => {
            Problem::impossible("a rule that applies is kept on Redis, where limits have no `factor`: leave it out")
        }
        NoRuling::FactorOutOfRange => {
            Problem::impossible("a limit cannot be made that loose or tight: change `factor`")
        }
    }
}

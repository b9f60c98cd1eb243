//! `POST /v1/report`: a request has ended.

use std::borrow::Cow;

use http::{Response, Uri};
use hyper::body::Incoming;

use super::answer::json;
use super::body::{self, Whole};
use super::check::cpu_of;
use super::problem::Problem;
use crate::doors::metrics::Count;
use crate::doors::station::Station;

/// How many reports one call may have.
const REPORTS_MAX: usize = 1024;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Report<'a> {
    /// The ticket of the check.
    #[serde(borrow)]
    ticket: Cow<'a, str>,
    /// CPU time of the request in milliseconds, if it is known.
    #[serde(default)]
    toll_ms: Option<f64>,
    /// Whether the request did not take place: its charge is given back.
    #[serde(default)]
    refund: bool,
}

/// A report in a query.
#[derive(serde::Deserialize)]
struct QueryReport {
    ticket: String,
    #[serde(default)]
    toll_ms: Option<f64>,
    #[serde(default)]
    refund: bool,
}

/// Settles the tickets of a call.
pub(super) async fn report(station: &Station, body: Incoming) -> Result<Response<Whole>, Problem> {
    let bytes = body::read(body).await?;
    let wrong = |error: serde_json::Error| Problem::malformed(format!("no report: {error}"));
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        let report: Report<'_> = serde_json::from_slice(&bytes).map_err(wrong)?;
        return match settle(station, &report)? {
            true => Ok(json(b"{\"settled\": true}".to_vec())),
            false => Err(Problem::unknown("no such ticket: it was settled already, or its deadline is over")),
        };
    }
    let reports: Vec<Report<'_>> = serde_json::from_slice(&bytes).map_err(wrong)?;
    if reports.len() > REPORTS_MAX {
        return Err(Problem::malformed(format!("more than {REPORTS_MAX} reports in one call")));
    }
    for report in &reports {
        report.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
    }
    let settled = reports.iter().map(|report| Ok(format!("{{\"settled\": {}}}", settle(station, report)?)));
    let settled: Vec<String> = settled.collect::<Result<_, Problem>>()?;
    Ok(json(format!("[{}]", settled.join(", ")).into_bytes()))
}

/// Settles the ticket that the query names.
pub(super) fn report_query(station: &Station, uri: &Uri) -> Result<Response<Whole>, Problem> {
    let query = uri.query().unwrap_or_default();
    let report: QueryReport = serde_urlencoded::from_str(query).map_err(|_| {
        Problem::malformed("no report: write `?ticket=TICKET`, and `&toll_ms=12` if the CPU time is known")
    })?;
    let QueryReport { ticket, toll_ms, refund } = report;
    let is_settled = settle(station, &Report { ticket: ticket.into(), toll_ms, refund })?;
    Ok(json(format!("{{\"settled\": {is_settled}}}").into_bytes()))
}

/// Whether the ticket was kept.
fn settle(station: &Station, report: &Report<'_>) -> Result<bool, Problem> {
    let cpu = report.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
    let Some(ticket) = station.take(&report.ticket) else { return Ok(false) };
    station.count(Count::Settled);
    if report.refund {
        station.decider.give_back(ticket);
    } else {
        station.decider.settle(ticket, cpu);
    }
    Ok(true)
}

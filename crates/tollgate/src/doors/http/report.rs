//! `POST /v1/report`: the caller of `/v1/check` or `/v1/auth` reports that requests have ended. Their tickets are
//! settled: the measured cost replaces the expected one, and permits are released.

use std::borrow::Cow;

use super::check::cpu_of;
use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use crate::doors::metrics::Count;
use crate::doors::station::Station;

/// Maximum number of reports in one call.
const REPORTS_MAX: usize = 1024;

/// A report in the body of a call.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TicketReport<'a> {
    /// The name of the ticket.
    #[serde(borrow)]
    ticket: Cow<'a, str>,
    /// The measured CPU time of the request, in milliseconds.
    toll_ms: Option<f64>,
    /// Whether the charge is refunded, because the request was not served.
    #[serde(default)]
    refund: bool,
}

/// A report in the query of a call, with the same fields.
#[derive(serde::Deserialize)]
struct QueryReport {
    ticket: String,
    toll_ms: Option<f64>,
    #[serde(default)]
    refund: bool,
}

/// Settles the tickets of a call.
pub(super) fn report(station: &Station, bytes: &[u8], reply: &mut DoorReply) -> Result<(), DoorProblem> {
    let wrong = |error: serde_json::Error| DoorProblem::malformed(format!("invalid report: {error}"));
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        let report: TicketReport<'_> = serde_json::from_slice(bytes).map_err(wrong)?;
        if !settle(station, &report)? {
            return Err(DoorProblem::unknown("unknown ticket: it is already settled, or it has expired"));
        }
        reply.json(|out| out.extend_from_slice(b"{\"settled\": true}"));
        return Ok(());
    }
    let reports: Vec<TicketReport<'_>> = serde_json::from_slice(bytes).map_err(wrong)?;
    if reports.len() > REPORTS_MAX {
        return Err(DoorProblem::malformed(format!("more than {REPORTS_MAX} reports in one call")));
    }
    // A call with an invalid report settles nothing.
    for report in &reports {
        report.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
    }
    let settled = reports.iter().map(|report| Ok(format!("{{\"settled\": {}}}", settle(station, report)?)));
    let settled: Vec<String> = settled.collect::<Result<_, DoorProblem>>()?;
    reply.json(|out| out.extend_from_slice(format!("[{}]", settled.join(", ")).as_bytes()));
    Ok(())
}

/// Settles the ticket in the query.
pub(super) fn report_query(station: &Station, query: &[u8], reply: &mut DoorReply) -> Result<(), DoorProblem> {
    let report: QueryReport = serde_urlencoded::from_bytes(query).map_err(|_| {
        DoorProblem::malformed("invalid report: write `?ticket=TICKET`, and `&toll_ms=12` if the CPU time is known")
    })?;
    let QueryReport { ticket, toll_ms, refund } = report;
    let is_settled = settle(station, &TicketReport { ticket: ticket.into(), toll_ms, refund })?;
    reply.json(|out| out.extend_from_slice(format!("{{\"settled\": {is_settled}}}").as_bytes()));
    Ok(())
}

/// Settles a ticket. Returns false if it is unknown.
fn settle(station: &Station, report: &TicketReport<'_>) -> Result<bool, DoorProblem> {
    let cpu = report.toll_ms.map(|millis| cpu_of(millis, "toll_ms")).transpose()?;
    let Some(ticket) = station.tickets.take(&report.ticket) else { return Ok(false) };
    station.count(Count::Settled);
    if report.refund {
        station.decider.give_back(ticket);
    } else {
        station.decider.settle(ticket, cpu);
    }
    Ok(true)
}

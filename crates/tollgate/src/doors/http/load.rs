//! `POST /v1/load`: an application reports its load. The gate uses it for the band, the load level of the backend.

use tollgate_core::time::Span;

use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use crate::doors::station::Station;

/// Maximum reported lag, in milliseconds: one hour.
const LAG_MS_MAX: f64 = 3_600_000.0;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadReport {
    /// The queueing delay inside the application, in milliseconds.
    lag_ms: f64,
}

/// Records a report and responds with the band.
pub(super) fn load(station: &Station, bytes: &[u8], reply: &mut DoorReply) -> Result<(), DoorProblem> {
    let report: LoadReport = serde_json::from_slice(bytes)
        .map_err(|error| DoorProblem::malformed(format!("invalid load: {error}; write {{\"lag_ms\": 12}}")))?;
    if !(0.0..=LAG_MS_MAX).contains(&report.lag_ms) {
        return Err(DoorProblem::malformed(format!("`lag_ms` is not from 0 to {LAG_MS_MAX}")));
    }
    let band = station.decider.report_load(Span::from_nanos((report.lag_ms * 1e6).round() as u64));
    reply.json(|out| out.extend_from_slice(format!("{{\"band\": \"{}\"}}", band.as_str()).as_bytes()));
    Ok(())
}

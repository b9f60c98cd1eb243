//! `POST /v1/load`: an application says how loaded it is.

use http::Response;
use hyper::body::Incoming;
use tollgate_core::time::Span;

use super::answer::json;
use super::body::{self, Whole};
use super::problem::Problem;
use crate::doors::station::Station;

/// The longest lag that is reported, in milliseconds: one hour.
const LAG_MS_MAX: f64 = 3_600_000.0;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    /// For how long the work of the application waits, in milliseconds.
    lag_ms: f64,
}

/// Takes a report, and answers with the band.
pub(super) async fn load(station: &Station, body: Incoming) -> Result<Response<Whole>, Problem> {
    let bytes = body::read(body).await?;
    let report: Report = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::malformed(format!("no load: {error}; write {{\"lag_ms\": 12}}")))?;
    if !(0.0..=LAG_MS_MAX).contains(&report.lag_ms) {
        return Err(Problem::malformed(format!("`lag_ms` is not from 0 to {LAG_MS_MAX}")));
    }
    let band = station.decider.report_load(Span::from_nanos((report.lag_ms * 1e6).round() as u64));
    Ok(json(format!("{{\"band\": \"{}\"}}", band.as_str()).into_bytes()))
}

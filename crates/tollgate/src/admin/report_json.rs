//! The JSON of `POST /api/v1/rejections`, with which another program reports the requests that it has refused. This
//! file depends on no other module, so that it can be fuzzed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Number;

/// The maximum length of a report's id, in bytes.
pub(super) const ID_BYTES_MAX: usize = 128;

/// One report.
#[derive(Deserialize)]
pub(super) struct RejectionReport<'a> {
    /// Chosen by the reporter. A report with the same ID as an earlier one is not counted again.
    pub(super) id: String,
    #[serde(borrow)]
    pub(super) entries: Vec<RejectionEntry<'a>>,
}

/// The refusals of one key. Counts that are not positive whole numbers are ignored later, not rejected.
#[derive(Deserialize)]
pub(super) struct RejectionEntry<'a> {
    #[serde(borrow)]
    pub(super) class: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) key: Cow<'a, str>,
    /// The number of refusals.
    pub(super) rejected: Number,
}

impl<'a> RejectionReport<'a> {
    /// Parses the body of a call, or returns why it is no report.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, String> {
        let report: Self = serde_json::from_slice(body).map_err(|error| format!("not a valid report: {error}"))?;
        if !(1..=ID_BYTES_MAX).contains(&report.id.len()) {
            return Err(format!("`id` must have 1 to {ID_BYTES_MAX} bytes and be different for each report"));
        }
        Ok(report)
    }
}

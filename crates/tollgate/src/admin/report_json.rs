//! The JSON of `POST /api/v1/rejections`. It has no other dependencies, so that it can be fuzzed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Number;

/// The maximum length of a report's id, in bytes.
pub(super) const ID_BYTES_MAX: usize = 128;

/// One report.
#[derive(Deserialize)]
pub(super) struct RejectionReport<'a> {
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

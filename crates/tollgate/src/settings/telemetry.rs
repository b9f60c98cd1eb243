//! `[telemetry]`: who is told in OpenTelemetry's protocol.

use std::path::PathBuf;

use tollgate_core::time::Span;

use super::fault::Collector;
use super::limit::nonzero;
use super::roles::WebUrl;
use super::table::table;
use super::value::{Millionths, Name};

const MILLION: u32 = 1_000_000;

/// Who is told, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Telemetry {
    /// Whether TLS is spoken.
    pub(crate) tls: bool,
    /// Host and port.
    pub(crate) authority: String,
    /// What the paths begin with.
    pub(crate) path: String,
    /// How often figures are sent.
    pub(crate) every: Span,
    /// How many of a million requests are told as traces; none if no request is.
    pub(crate) traces_millionths: Option<u32>,
    /// The name under which all this is filed.
    pub(crate) service: String,
    /// Header fields that the receiver wants to see.
    pub(crate) headers_file: Option<PathBuf>,
}

table! {
    /// Where a gate's figures and traces are sent to, in OpenTelemetry's protocol. What is not taken is dropped and counted; no request waits for it.
    struct TelemetryTable {
        /// The receiver of OTLP over HTTP, such as a collector. Figures go to `/v1/metrics` below it, traces to `/v1/traces`.
        otlp: WebUrl = required,
        /// How often figures are sent.
        every: Span = "\"10s\"",
        /// The share of requests that are told as traces, up to 1. Where a trusted proxy sends `traceparent`, that decides instead. Without
        /// it, no request is told.
        traces: Millionths,
        /// The name under which all this is filed, as `service.name`.
        service: Name = "\"tollgate\"",
        /// A file with header fields for the receiver, such as a key, one `name: value` on each line.
        headers_file: PathBuf,
    }
}

impl TelemetryTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Option<Telemetry> {
        if let Some(traces) = self.traces.as_ref().filter(|traces| traces.value.0 > MILLION) {
            faults.fault(
                &traces.span,
                "a share is a part of the whole, at most 1: write `traces = 1.0` for every request",
            );
        }
        let every = nonzero(&self.every, faults)?;
        let WebUrl { tls, authority, path } = self.otlp?.value;
        Some(Telemetry {
            tls,
            authority,
            path,
            every,
            traces_millionths: self.traces.map(|traces| traces.value.0),
            service: self.service.value.0,
            headers_file: self.headers_file.map(|path| path.value),
        })
    }
}

//! `[telemetry]`: the OpenTelemetry receiver of metrics and traces.

use std::path::PathBuf;

use tollgate_core::time::Span;

use super::error::ErrorCollector;
use super::limit::nonzero;
use super::roles::WebUrl;
use super::table::table;
use super::value::{Millionths, Name};

const MILLION: u32 = 1_000_000;

/// The OpenTelemetry receiver, and the data that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TelemetrySettings {
    /// The receiver; its path is the prefix of the paths.
    pub(crate) url: WebUrl,
    /// The interval between two transmissions of metrics.
    pub(crate) every: Span,
    /// The share of traced requests, in millionths. None: no traces.
    pub(crate) traces_millionths: Option<u32>,
    /// The value of `service.name`.
    pub(crate) service: String,
    /// The file with header fields for the receiver.
    pub(crate) headers_file: Option<PathBuf>,
}

table! {
    /// The OpenTelemetry receiver of metrics and traces. Data that it does not accept is dropped and counted; no
    /// request waits for it.
    struct TelemetryTable {
        /// The URL of the receiver, for OTLP over HTTP. Metrics are sent to `/v1/metrics` below it, traces to
        /// `/v1/traces`.
        otlp: WebUrl = required,
        /// The interval between two transmissions of metrics.
        every: Span = "\"10s\"",
        /// The share of traced requests, at most 1. If a trusted proxy sends `traceparent`, its sampling decision
        /// applies instead. Default: no traces.
        traces: Millionths,
        /// The value of `service.name`.
        service: Name = "\"tollgate\"",
        /// The file with header fields for the receiver, such as an API key: one `name: value` per line.
        headers_file: PathBuf,
    }
}

impl TelemetryTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Option<TelemetrySettings> {
        if let Some(traces) = self.traces.as_ref().filter(|traces| traces.value.0 > MILLION) {
            errors.report(
                &traces.span,
                "a share is a part of the whole, at most 1: write `traces = 1.0` for every request",
            );
        }
        let every = nonzero(&self.every, errors)?;
        Some(TelemetrySettings {
            url: self.otlp?.value,
            every,
            traces_millionths: self.traces.map(|traces| traces.value.0),
            service: self.service.value.0,
            headers_file: self.headers_file.map(|path| path.value),
        })
    }
}

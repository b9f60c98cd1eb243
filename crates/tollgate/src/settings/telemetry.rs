//! `[telemetry]`: the OpenTelemetry receiver of metrics and traces.

use std::path::PathBuf;
use std::time::Duration;

use super::roles::WebUrl;
use super::table::table;
use super::value::{Millionths, Name};

table! {
    /// The OpenTelemetry receiver of metrics and traces. Data that it does not accept is dropped and counted; no
    /// request waits for it.
    pub(crate) struct TelemetrySettings as "telemetry" {
        /// The URL of the receiver, for OTLP over HTTP. Metrics are sent to `/v1/metrics` below it, traces to
        /// `/v1/traces`.
        url as "otlp": WebUrl = required,
        /// The interval between two transmissions of metrics.
        every: Duration = "\"10s\"",
        /// The share of traced requests, at most 1. If a trusted proxy sends `traceparent`, its sampling decision
        /// applies instead. Default: no traces.
        traces_millionths as "traces": Millionths where ..=1_000_000 =>
            "a share is a part of the whole, at most 1: write `traces = 1.0` for every request",
        /// The value of `service.name`.
        service: Name = "\"tollgate\"",
        /// The file with header fields for the receiver, such as an API key: one `name: value` per line.
        headers_file: PathBuf,
    }
}

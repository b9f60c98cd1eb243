//! Exports metrics and traces with the OpenTelemetry protocol, if configured.
//!
//! No request waits for the collector. The trace of a request is put into a bounded queue and sent by a separate
//! task. Traces that do not fit, or that the collector does not accept, are dropped and counted. Without a collector
//! in the settings there is no [`Tracer`] and no queue, and requests only check that.

mod export;
mod request_trace;
mod tracer;

pub(crate) use export::TelemetryExporter;
pub(crate) use request_trace::Decided;
pub(crate) use tracer::{Trace, Tracer};

//! Figures and traces for others, in OpenTelemetry's protocol, when somebody asks for them.
//!
//! Nothing waits for the receiver. What a request has to tell is put into a queue that is bounded, and sent by a task of its own; what there is no
//! room for, or what nobody takes, is dropped and counted. Without a receiver in the settings there is no queue, and a request pays for one look at
//! an absent value.

mod export;
mod journey;
mod tracer;

pub(crate) use export::Telemetry;
pub(crate) use journey::Decided;
pub(crate) use tracer::{Trace, Tracer};

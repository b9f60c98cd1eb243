//! Encodes spans, the timed steps of traced requests, as an OTLP export.

use super::protobuf::Writer;
use super::{Sender, Value, write_attribute};

/// The role of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// An internal step.
    Internal = 1,
    /// A request received from a client.
    Server = 2,
    /// A request sent to a backend.
    Client = 3,
}

/// A timed step of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace that it belongs to.
    pub trace: [u8; 16],
    /// The span's identifier.
    pub id: [u8; 8],
    /// The parent span.
    pub parent: Option<[u8; 8]>,
    /// The name of the step.
    pub name: String,
    /// The role of the step.
    pub kind: SpanKind,
    /// The start, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The end, in nanoseconds since 1970.
    pub end_ns: u64,
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it failed.
    pub failed: bool,
}

/// Encodes an export of spans.
pub fn write_spans<'a>(sender: &Sender, spans: impl IntoIterator<Item = &'a Span>) -> Vec<u8> {
    sender.export(|writer| spans.into_iter().for_each(|span| writer.message(2, |writer| span.write(writer))))
}

impl Span {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.bytes(1, &self.trace);
        writer.bytes(2, &self.id);
        if let Some(parent) = &self.parent {
            writer.bytes(4, parent);
        }
        writer.bytes(5, self.name.as_bytes());
        writer.integer(6, self.kind as u64);
        writer.fixed(7, self.start_ns);
        writer.fixed(8, self.end_ns);
        self.attributes.iter().for_each(|(name, value)| write_attribute(writer, 9, name, value));
        if self.failed {
            // The status `STATUS_CODE_ERROR`.
            writer.message(15, |status| status.integer(3, 2));
        }
    }
}

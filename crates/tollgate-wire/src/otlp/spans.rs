//! What happened to single requests.

use super::protobuf::Writer;
use super::{Sender, Value, write_attribute};

/// What a span is a stretch of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something within.
    Internal = 1,
    /// Serving somebody's request.
    Server = 2,
    /// Asking somebody.
    Client = 3,
}

/// A stretch of time in which something was done for a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The journey that it is a part of.
    pub trace: [u8; 16],
    /// Its own name.
    pub id: [u8; 8],
    /// The span that it is a part of.
    pub parent: Option<[u8; 8]>,
    /// What was done.
    pub name: String,
    /// For whom.
    pub kind: Kind,
    /// When it began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When it was over.
    pub end_ns: u64,
    /// What there is to say.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it went wrong.
    pub failed: bool,
}

/// Writes an export of spans.
pub fn write_spans<'a>(sender: &Sender, spans: impl IntoIterator<Item = &'a Span>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes).message(1, |resource_spans| {
        sender.write_resource(resource_spans);
        resource_spans.message(2, |scope_spans| {
            sender.write_scope(scope_spans);
            spans.into_iter().for_each(|span| scope_spans.message(2, |writer| span.write(writer)));
        });
    });
    bytes
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
            writer.message(15, |status| status.integer(3, 2));
        }
    }
}

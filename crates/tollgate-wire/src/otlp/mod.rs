//! OTLP: encodes the metrics and spans of a process as Protocol Buffers, for an OpenTelemetry collector. The
//! telemetry exporter of the binary sends the bytes.
//!
//! The few messages are encoded by hand; none is decoded. The first argument of each `Writer` method is a field number
//! of `opentelemetry-proto` 1.x.

mod metrics;
mod protobuf;
mod spans;

pub use metrics::write_metrics;
pub use spans::{Span, SpanKind, write_spans};

use protobuf::Writer;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// An integer.
    Whole(i64),
    /// A floating-point number.
    Number(f64),
}

/// The process that an export describes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sender {
    /// Resource attributes, such as `service.name`.
    pub attributes: Vec<(&'static str, Value)>,
    /// The version of the program.
    pub version: &'static str,
}

impl Sender {
    /// Encodes an export, in which `write` writes the metrics or spans. Both kinds have the same outer fields.
    fn export(&self, write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        Writer::new(&mut bytes).message(1, |export| {
            export.message(1, |resource| {
                self.attributes.iter().for_each(|(name, value)| write_attribute(resource, 1, name, value));
            });
            export.message(2, |scoped| {
                scoped.message(1, |scope| {
                    scope.bytes(1, b"tollgate");
                    scope.bytes(2, self.version.as_bytes());
                });
                write(scoped);
            });
        });
        bytes
    }
}

fn write_attribute(writer: &mut Writer<'_>, field: u32, name: &str, value: &Value) {
    writer.message(field, |pair| {
        pair.bytes(1, name.as_bytes());
        pair.message(2, |any| match value {
            Value::Text(text) => any.bytes(1, text.as_bytes()),
            Value::Whole(number) => any.integer(3, *number as u64),
            Value::Number(number) => any.double(4, *number),
        });
    });
}

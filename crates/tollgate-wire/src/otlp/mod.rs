//! OTLP, as collectors of telemetry are told: figures and spans, in Protocol Buffers.
//!
//! Written by hand for the few messages that are sent; nothing of it is ever read. Field numbers are those of `opentelemetry-proto` 1.x.

mod figures;
mod protobuf;
mod spans;

pub use figures::write_figures;
pub use spans::{Kind, Span, write_spans};

use protobuf::Writer;

/// Something said about a span or a sender.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
}

/// Who sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Sender {
    /// What is known of it, such as `service.name`.
    pub attributes: Vec<(&'static str, Value)>,
    /// The version of the program.
    pub version: &'static str,
}

impl Sender {
    fn write_resource(&self, writer: &mut Writer<'_>) {
        writer.message(1, |resource| {
            self.attributes.iter().for_each(|(name, value)| write_attribute(resource, 1, name, value));
        });
    }

    fn write_scope(&self, writer: &mut Writer<'_>) {
        writer.message(1, |scope| {
            scope.bytes(1, b"tollgate");
            scope.bytes(2, self.version.as_bytes());
        });
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

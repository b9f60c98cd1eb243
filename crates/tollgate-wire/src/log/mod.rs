//! Parses recorded requests, one per line, from a Tollgate trace or the access log of a web server, and writes the
//! access log of the gate. `tollgate replay` runs rules on recorded requests. The log door reads the access log of a
//! proxy to learn what the requests cost about which the proxy asked the gate.
//!
//! A day of a busy site has a hundred million lines, so lines are parsed in place. A parsed [`Request`]
//! borrows from its line, and only text with escapes is copied, to a buffer that is reused for the next line.
//! General JSON parsers build a value per field or validate unused ones; `docs/decisions/reading-logs.md` has
//! the measurements.
//!
//! Lines contain text from clients, such as paths and user agents, so nothing here recurses or grows with its
//! input. Lines have at most [`LINE_BYTES_MAX`] bytes, values nest at most [`DEPTH_MAX`] levels, a request
//! has at most [`FIELDS_MAX`] headers, and an invalid line gives a small [`LineError`] with its position.

mod client;
mod combined;
mod date;
mod decimal;
mod format;
mod json;
mod line_error;
mod request;
mod scanner;
mod syslog;
mod text;
mod trace;
mod write;

pub use client::Client;
pub use date::{MONTHS, civil};
pub use format::Format;
pub use line_error::{Expected, LineError};
pub use request::{Line, LineFields, Request};
pub use write::{AccessEntry, RequestLine};

use text::Scratch;

/// The maximum length of a line in bytes.
pub const LINE_BYTES_MAX: usize = 256 * 1024;
/// The maximum nesting of JSON values.
pub const DEPTH_MAX: u32 = 64;
/// The maximum number of headers of a request, and of its attributes.
pub const FIELDS_MAX: usize = 128;

/// Parses lines with one reusable buffer.
#[derive(Debug, Default)]
pub struct Parser {
    scratch: Scratch,
}

impl Parser {
    /// A parser with an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses one line, without its line feed.
    ///
    /// The result borrows from `line` and from this parser.
    pub fn parse<'a>(&'a mut self, format: Format, line: &'a [u8]) -> Result<Line<'a>, LineError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineError::at(LINE_BYTES_MAX, Expected::ShorterLine));
        }
        self.scratch.clear();
        if format == Format::Trace {
            return trace::parse(line, &mut self.scratch);
        }
        let header = syslog::header_bytes(line)?;
        let message = &line[header..];
        let parsed = match format {
            Format::Json => json::parse(message, &mut self.scratch),
            _ => combined::parse(message, &mut self.scratch),
        };
        let column = |error: LineError| LineError { column: error.column + header as u32, ..error };
        parsed.map(Line::Request).map_err(column)
    }
}

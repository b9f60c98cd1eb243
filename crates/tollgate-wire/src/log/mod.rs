//! Recorded traffic: a trace of our own, or the access log that a web server wrote anyway.
//!
//! A day of a busy site is a hundred million lines, so a line is read where it lies: a parsed [`Request`] borrows from the line,
//! and only text with escapes in it is copied, into a buffer that the next line uses again. General JSON readers build
//! a value per field or validate what nobody looks at; the figures that decided for an own scanner are in
//! `docs/decisions/reading-logs.md`.
//!
//! Lines come from strangers (a client chooses its path and its user agent), so nothing here recurses, trusts or grows with its
//! input: lines are at most [`LINE_BYTES_MAX`] long, values nest at most [`DEPTH_MAX`] deep, a request has at most
//! [`FIELDS_MAX`] headers, and what is wrong with a line is a small [`Fault`] with its column.

mod client;
mod combined;
mod date;
mod decimal;
mod fault;
mod format;
mod json;
mod request;
mod scanner;
mod text;
mod trace;

pub use client::Client;
pub use fault::{Expected, Fault};
pub use format::Format;
pub use request::{Fields, Line, Request};

use text::Scratch;

/// The longest line that is looked at.
pub const LINE_BYTES_MAX: usize = 256 * 1024;
/// How deep JSON values may nest.
pub const DEPTH_MAX: u32 = 64;
/// The most headers, and the most attributes, that one request may have.
pub const FIELDS_MAX: usize = 128;

/// Reads lines, one after the other, with one buffer for all of them.
#[derive(Debug, Default)]
pub struct Parser {
    scratch: Scratch,
}

impl Parser {
    /// A parser with an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads one line, given without its line feed.
    ///
    /// The values of the line borrow from `line` and from this parser, until it reads the next one.
    pub fn parse<'a>(&'a mut self, format: Format, line: &'a [u8]) -> Result<Line<'a>, Fault> {
        if line.len() > LINE_BYTES_MAX {
            return Err(Fault::at(LINE_BYTES_MAX, Expected::ShorterLine));
        }
        self.scratch.clear();
        match format {
            Format::Trace => trace::parse(line, &mut self.scratch),
            Format::Combined => combined::parse(line, &mut self.scratch).map(Line::Request),
            Format::Json => json::parse(line, &mut self.scratch).map(Line::Request),
        }
    }
}

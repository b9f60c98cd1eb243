//! Errors in log lines, with their positions.

use core::fmt;

/// The reason why a line is invalid: the expected item and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}")]
pub struct LineError {
    /// The position in the line, in bytes from 1.
    pub column: u32,
    /// The expected item.
    pub expected: Expected,
}

/// An item that a line must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// A line within [`LINE_BYTES_MAX`](super::LINE_BYTES_MAX).
    ShorterLine,
    /// A JSON object.
    Object,
    /// A field name in quotes.
    FieldName,
    /// A colon after a field name.
    Colon,
    /// A comma, or the end of the object or array.
    CommaOrEnd,
    /// Any JSON value.
    Value,
    /// A JSON number.
    Number,
    /// A string, and its closing quote.
    String,
    /// A legal escape after a backslash, and no raw control character.
    Escape,
    /// Values that nest at most [`DEPTH_MAX`](super::DEPTH_MAX) deep.
    ShallowerValue,
    /// At most [`FIELDS_MAX`](super::FIELDS_MAX) headers or attributes.
    FewerFields,
    /// Nothing more.
    End,
    /// `at_ms`, a number of milliseconds from 0 on.
    AtMs,
    /// `cost_ms`, a number of milliseconds from 0 on.
    CostMs,
    /// `client`, an address or a name.
    Client,
    /// `client` or `band`, and not both.
    ClientOrBand,
    /// One of the names of the bands.
    Band,
    /// A time of one of the usual forms.
    Time,
    /// The time in brackets.
    BracketedTime,
    /// The request line in quotes.
    QuotedRequest,
    /// A status of three digits.
    Status,
    /// The size of the response, or `-`.
    Size,
    /// The host and the program of a syslog header.
    SyslogProgram,
}

impl LineError {
    pub(crate) const fn at(index: usize, expected: Expected) -> Self {
        Self { column: index as u32 + 1, expected }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShorterLine => "a line of at most 256 KiB",
            Self::Object => "a JSON object",
            Self::FieldName => "a field name in quotes",
            Self::Colon => "a colon",
            Self::CommaOrEnd => "a comma or the closing bracket",
            Self::Value => "a JSON value",
            Self::Number => "a number",
            Self::String => "a string and its closing quote",
            Self::Escape => "a legal escape and no control character",
            Self::ShallowerValue => "values that nest at most 64 deep",
            Self::FewerFields => "at most 128 headers or attributes",
            Self::End => "the end of the line",
            Self::AtMs => "at_ms, a number of milliseconds from 0 on",
            Self::CostMs => "cost_ms, a number of milliseconds from 0 on",
            Self::Client => "client, an address or a name",
            Self::ClientOrBand => "client (a request) or band, and not both",
            Self::Band => "band to be normal, elevated or critical",
            Self::Time => "a time: RFC 3339, seconds or milliseconds since 1970, or 10/Oct/2000:13:55:36 -0700",
            Self::BracketedTime => "the time in brackets: [10/Oct/2000:13:55:36 -0700]",
            Self::QuotedRequest => "the request line in quotes",
            Self::Status => "a status of three digits",
            Self::Size => "the size of the response or -",
            Self::SyslogProgram => "host and program of a syslog header, such as `web1 nginx:`, after its time",
        })
    }
}

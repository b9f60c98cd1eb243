//! Errors in log lines, with their positions.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Expected {
    /// A line within [`LINE_BYTES_MAX`](super::LINE_BYTES_MAX).
    #[error("a line of at most 256 KiB")]
    ShorterLine,
    /// A JSON object.
    #[error("a JSON object")]
    Object,
    /// A field name in quotes.
    #[error("a field name in quotes")]
    FieldName,
    /// A colon after a field name.
    #[error("a colon")]
    Colon,
    /// A comma, or the end of the object or array.
    #[error("a comma or the closing bracket")]
    CommaOrEnd,
    /// Any JSON value.
    #[error("a JSON value")]
    Value,
    /// A JSON number.
    #[error("a number")]
    Number,
    /// A string, and its closing quote.
    #[error("a string and its closing quote")]
    String,
    /// A legal escape after a backslash, and no raw control character.
    #[error("a legal escape and no control character")]
    Escape,
    /// Values that nest at most [`DEPTH_MAX`](super::DEPTH_MAX) deep.
    #[error("values that nest at most 64 deep")]
    ShallowerValue,
    /// At most [`FIELDS_MAX`](super::FIELDS_MAX) headers or attributes.
    #[error("at most 128 headers or attributes")]
    FewerFields,
    /// Nothing more.
    #[error("the end of the line")]
    End,
    /// `at_ms`, a number of milliseconds from 0 on.
    #[error("at_ms, a number of milliseconds from 0 on")]
    AtMs,
    /// `cost_ms`, a number of milliseconds from 0 on.
    #[error("cost_ms, a number of milliseconds from 0 on")]
    CostMs,
    /// `client`, an address or a name.
    #[error("client, an address or a name")]
    Client,
    /// `client` or `band`, and not both.
    #[error("client (a request) or band, and not both")]
    ClientOrBand,
    /// One of the names of the bands.
    #[error("band to be normal, elevated or critical")]
    Band,
    /// A time of one of the usual forms.
    #[error("a time: RFC 3339, seconds or milliseconds since 1970, or 10/Oct/2000:13:55:36 -0700")]
    Time,
    /// The time in brackets.
    #[error("the time in brackets: [10/Oct/2000:13:55:36 -0700]")]
    BracketedTime,
    /// The request line in quotes.
    #[error("the request line in quotes")]
    QuotedRequest,
    /// A status of three digits.
    #[error("a status of three digits")]
    Status,
    /// The size of the response, or `-`.
    #[error("the size of the response or -")]
    Size,
    /// The host and the program of a syslog header.
    #[error("host and program of a syslog header, such as `web1 nginx:`, after its time")]
    SyslogProgram,
}

impl LineError {
    pub(crate) const fn at(index: usize, expected: Expected) -> Self {
        Self { column: index as u32 + 1, expected }
    }
}

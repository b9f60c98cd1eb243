//! The YAML configuration of envoyproxy/ratelimit, the reference implementation of Envoy's rate limit service. The gRPC
//! door answers Envoy by the limits of such files, and `tollgate import` translates them to rules.
//!
//! Envoy sends descriptors for each request: lists of entries, each with a key and a value. A file contains one
//! domain with nested descriptors, one level per entry, and their limits. [`parse`] reads one file and reports all
//! errors with their positions. [`LimitTree`] finds the limit of a request's descriptor by the rules of that service:
//! on each level an exact `key_value` first, then wildcards in file order, then the bare `key`. A key or value at the
//! wrong place is an error here, although the original ignores some of them.

mod lookup;
mod read;
mod yaml;

pub use lookup::{LeafEntry, LimitLeaf, LimitTree};

/// The unit of time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// One second.
    Second,
    /// 60 s.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl LimitUnit {
    /// All units with their names and lengths in seconds.
    const ALL: [(Self, &'static str, u64); 7] = [
        (Self::Second, "second", 1),
        (Self::Minute, "minute", 60),
        (Self::Hour, "hour", 3_600),
        (Self::Day, "day", 86_400),
        (Self::Week, "week", 7 * 86_400),
        (Self::Month, "month", 30 * 86_400),
        (Self::Year, "year", 365 * 86_400),
    ];

    /// The unit of this name, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name, _)| name.eq_ignore_ascii_case(text)).map(|(unit, ..)| unit)
    }

    /// The length in seconds.
    pub fn secs(self) -> u64 {
        Self::ALL[self as usize].2
    }
}

/// How many requests a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// This many requests per unit; 0 refuses all.
    PerUnit(u32, LimitUnit),
    /// Any number.
    Unlimited,
}

/// The `rate_limit` of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// How many requests it allows.
    pub allowance: Allowance,
    /// The name that `replaces` refers to; several limits may have it.
    pub name: Option<String>,
    /// The names of limits that do not apply to a request that this limit applies to.
    pub replaces: Vec<String>,
}

/// A descriptor of the file, with those below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorSpec {
    /// The key that the entry of a request must have; not empty.
    pub key: String,
    /// The value, in which `*` matches any text; `None` matches every value.
    pub value: Option<String>,
    /// The limit for request descriptors that end here.
    pub limit: Option<LimitSpec>,
    /// Whether the limit is only evaluated and counted, and refuses nothing.
    pub is_shadow: bool,
    /// Whether a request is refused only if all limits with this mode are exceeded.
    pub is_quota: bool,
    /// Whether all values that match a wildcard share one counter.
    pub shares_threshold: bool,
    /// The descriptors for the next entry of the request.
    pub children: Vec<DescriptorSpec>,
    /// The line of the key, from 1.
    pub line: usize,
}

/// The contents of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitFile {
    /// The domain, by which Envoy selects the limits; not empty.
    pub domain: String,
    /// The line of the domain, from 1.
    pub domain_line: usize,
    /// The descriptors for the first entry of a request.
    pub descriptors: Vec<DescriptorSpec>,
    /// Keys that have no effect here.
    pub notes: Vec<ConfigMessage>,
}

/// A message about one place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMessage {
    /// The line, from 1.
    pub line: usize,
    /// The character within the line, from 1.
    pub column: usize,
    /// The error and its correction, or the reason why a key has no effect.
    pub message: String,
}

/// The maximum number of errors that one file reports.
pub const ERRORS_MAX: usize = 100;

/// Reads a file, or returns all its errors in the order of the file.
pub fn parse(text: &str) -> Result<LimitFile, Vec<ConfigMessage>> {
    let root = yaml::parse(text).map_err(|error| vec![error])?;
    read::file(&root)
}

/// The text of a descriptor for lookups and messages: the key, and its value, if there is one, after an underscore.
fn joined(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))
}

#[cfg(test)]
mod tests;

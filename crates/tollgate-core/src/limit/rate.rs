//! A number of requests per period, with a burst. It is the limit of Smockron, an earlier rate limiter.
//!
//! Charges are paid back evenly ([`Gcra`]), so the burst is exact: N at once, then one per interval.

use super::LimitError;
use super::gcra::Gcra;
use crate::time::Span;

/// `count` requests per `period` on average, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: Span,
    burst: u64,
    pub(super) gcra: Gcra,
}

impl Rate {
    /// A limit of `count` per `period` with bursts of `burst`.
    pub fn new(count: u64, period: Span, burst: u64) -> Result<Self, LimitError> {
        Ok(Self { count, period, burst, gcra: Gcra::new(count, period, burst)? })
    }

    /// The number of requests per period, the period, and the burst.
    pub const fn parameters(&self) -> (u64, Span, u64) {
        (self.count, self.period, self.burst)
    }

    /// The interval and the recovery time of the burst, if both are whole nanoseconds.
    pub(crate) fn whole_interval(&self) -> Option<(Span, Span)> {
        self.gcra.whole_interval()
    }
}

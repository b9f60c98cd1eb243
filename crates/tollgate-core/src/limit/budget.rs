//! A limit on the CPU time of a key at the backend, in CPU-seconds per second. It is the limit of Tempomat, an earlier
//! proxy.
//!
//! The cost of a request is known only afterwards, so the credit may become negative. A key is admitted
//! unless it is in debt, and its debt is repaid at the rate of its share before the next admission. A unit of the
//! arithmetic ([`Gcra`]) is a nanosecond of CPU time.

use super::LimitError;
use super::gcra::Gcra;
use crate::time::Span;

/// Credit that grows at a fraction of a core, up to `burst` of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The share of the key, in millionths of a core.
    millionths: u32,
    burst: Span,
    pub(super) gcra: Gcra,
}

/// Millionths in a core, and nanoseconds in a millisecond.
pub(super) const MILLION: u64 = 1_000_000;

impl Budget {
    /// A budget of `millionths` of a core, with a credit of at most `burst` of CPU time.
    pub fn new(millionths: u32, burst: Span) -> Result<Self, LimitError> {
        let gcra = Gcra::new(u64::from(millionths), Span::from_nanos(MILLION), burst.as_nanos())?;
        Ok(Self { millionths, burst, gcra })
    }

    /// Millionths of a core, and the burst in CPU time.
    pub const fn parameters(&self) -> (u32, Span) {
        (self.millionths, self.burst)
    }

    /// How long it takes to repay this much CPU time.
    pub fn time_of(&self, cpu: Span) -> Span {
        let nanos = u128::from(cpu.as_nanos()) * u128::from(MILLION) / u128::from(self.millionths);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

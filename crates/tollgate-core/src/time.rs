//! Time in the core: nanoseconds since an origin that the caller chose, in integers that saturate.
//!
//! Floating-point seconds drift and a wall clock steps. The caller reads a [`Moment`] from a monotonic clock
//! or from a trace. 64 bits of nanoseconds last 584 years, so saturation is a safety net and never a case to
//! handle.

use core::ops::Add;

/// A point on the monotonic clock: nanoseconds since the caller's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SEC: u64 = 1_000_000_000;

impl Moment {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// The end of time: never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment this many milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is in the future.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` before this one, but not before the origin.
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add<Span> for Moment {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// Longer than anything that can be waited for.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of this many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of this many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// A span of this many seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// Length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Length in milliseconds, rounded up, so that a client that waits this long has waited long enough.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }

    /// Length in seconds, rounded up, so that a client that waits this long has waited long enough.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }

    /// This span multiplied by `times`.
    pub const fn times(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// Whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl From<core::time::Duration> for Span {
    fn from(duration: core::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for core::time::Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_a_future_moment_is_zero() {
        assert_eq!(Moment::from_nanos(5).since(Moment::from_nanos(9)), Span::ZERO);
        assert_eq!(Moment::MAX + Span::from_secs(1), Moment::MAX);
    }

    #[test]
    fn a_wait_rounds_up_so_that_it_is_long_enough() {
        assert_eq!(Span::from_nanos(1).as_millis_ceil(), 1);
        assert_eq!(Span::from_millis(1001).as_secs_ceil(), 2);
        assert_eq!(Span::ZERO.as_millis_ceil(), 0);
    }
}

//! The cost of a request.

use crate::time::Span;

/// The cost of a request: CPU time for budgets, a count for all other limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// The number of requests that it counts as. A toll with a count of 0 checks the limits without spending.
    pub count: u64,
    /// CPU time at the backend.
    pub cpu: Span,
}

impl Toll {
    /// One request whose CPU time is unknown or irrelevant.
    pub const ONE: Self = Self { count: 1, cpu: Span::ZERO };

    /// One request that uses `cpu`.
    pub const fn of_cpu(cpu: Span) -> Self {
        Self { count: 1, cpu }
    }

    /// The CPU time by which `other` exceeds this toll.
    pub const fn cpu_missing(self, other: Self) -> Span {
        Span::from_nanos(other.cpu.as_nanos().saturating_sub(self.cpu.as_nanos()))
    }
}

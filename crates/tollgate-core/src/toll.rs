//! What a request costs.

use crate::time::Span;

/// What a request costs: CPU time for budgets, a count for the limits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toll {
    /// How many requests it counts as; 0 looks without spending.
    pub count: u64,
    /// CPU time at the backend.
    pub cpu: Span,
}

impl Toll {
    /// One request whose CPU time is not known, or does not matter.
    pub const ONE: Self = Self { count: 1, cpu: Span::ZERO };

    /// One request that takes `cpu`.
    pub const fn of_cpu(cpu: Span) -> Self {
        Self { count: 1, cpu }
    }

    /// How much more CPU time `other` takes.
    pub const fn cpu_missing(self, other: Self) -> Span {
        Span::from_nanos(other.cpu.as_nanos().saturating_sub(self.cpu.as_nanos()))
    }
}

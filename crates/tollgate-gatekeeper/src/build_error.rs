//! The reason why a limiter cannot be built.

use tollgate_core::class::ClassError;
use tollgate_core::limit::LimitError;

#[cfg(feature = "redis")]
use crate::shared::{Unleasable, Unshareable};
use crate::table::TableError;

/// A rule with which no limiter can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {}: {cause}", .rule + 1)]
pub struct BuildError {
    /// The index of the rule, from zero.
    pub rule: usize,
    /// The reason.
    pub cause: RuleError,
}

/// The reason why a rule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub enum RuleError {
    /// The text of its class is invalid.
    Class(#[from] ClassError),
    /// Its limit is invalid.
    Limit(#[from] LimitError),
    /// Its table cannot be created.
    Table(#[from] TableError),
    /// It is shared through Redis, but the store cannot represent it exactly.
    #[cfg(feature = "redis")]
    Unshareable(#[from] Unshareable),
    /// A part of it is to be leased from Redis, which is not possible for this rule.
    #[cfg(feature = "redis")]
    Unleasable(#[from] Unleasable),
}

impl BuildError {
    pub(crate) fn new(rule: usize, cause: impl Into<RuleError>) -> Self {
        Self { rule, cause: cause.into() }
    }
}

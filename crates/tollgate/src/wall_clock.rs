//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::time::{Moment, Span};

/// The current time since 1970.
pub(crate) fn now() -> Moment {
    Moment::ZERO + Span::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

//! The wall clock, for times in logs, telemetry and messages to other processes. Other times are monotonic.

use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::time::{Moment, Span};

/// The current time. [`Moment::ZERO`] is the Unix epoch.
pub(crate) fn now() -> Moment {
    Moment::ZERO + Span::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

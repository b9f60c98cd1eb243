//! The clocks of the master: all its decisions use this time.

use std::time::Instant;

use tollgate_core::fleet::ClockReading;
use tollgate_core::time::{Moment, Span};

use crate::wall_clock;

/// Reads the monotonic clock and the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: Instant,
}

/// The monotonic time at the start, one year: restored debts may be from long before the start of the process, and a
/// moment cannot be negative.
const HEAD_START: Span = Span::from_secs(86_400 * 366);

impl Clock {
    pub(super) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(super) fn read(&self) -> ClockReading {
        let wall_ms = wall_clock::now().as_nanos() / 1_000_000;
        ClockReading { now: Moment::ZERO + HEAD_START + Span::from(self.origin.elapsed()), wall_ms }
    }
}

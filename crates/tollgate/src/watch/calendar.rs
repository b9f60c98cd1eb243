//! The clock of the watch: wall-clock times that advance with the monotonic clock.
//!
//! The watch outlives its process, so its times have to mean the same in the next one: they are nanoseconds since 1970.
//! The wall clock is read once, at startup. From then on times follow the monotonic clock, so that a step of the wall
//! clock neither expires nor prolongs anything.

use tollgate_core::time::Moment;
use tollgate_gatekeeper::clock::Clock;
use tollgate_wire::log::civil;

use crate::wall_clock;

/// Current time since 1970. Clones share the same clock.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    clock: Clock,
    /// Wall-clock time at the zero of the monotonic clock.
    origin: Moment,
}

impl Calendar {
    /// Reads the wall clock and binds it to `clock`.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { origin: wall_clock::now().before(clock.now().since(Moment::ZERO)), clock }
    }

    /// Current time since 1970.
    pub(crate) fn now(&self) -> Moment {
        self.date_of(self.clock.now())
    }

    /// Converts a moment of the monotonic clock to a time since 1970.
    pub(crate) fn date_of(&self, moment: Moment) -> Moment {
        self.origin + moment.since(Moment::ZERO)
    }
}

/// Formats a time since 1970 as RFC 3339, with milliseconds.
pub(crate) fn rfc3339(moment: Moment) -> String {
    format!("{:.3}Z", civil(moment))
}

#[cfg(test)]
mod tests {
    use tollgate_core::time::Span;

    use super::*;

    #[test]
    fn times_are_formatted_as_dates() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_794_700_800, "2026-11-15T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Moment::from_millis(secs * 1000)), text);
        }
    }

    #[test]
    fn a_calendar_follows_the_monotonic_clock() {
        let (clock, hand) = Clock::by_hand();
        hand.advance(Span::from_secs(5));
        let calendar = Calendar::new(clock);
        let before = calendar.now();
        hand.advance(Span::from_secs(60));
        assert_eq!(calendar.now().since(before), Span::from_secs(60));
        assert!(*rfc3339(before) > *"2026");
    }
}

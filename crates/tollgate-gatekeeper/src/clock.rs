//! The monotonic clock on which limiters decide. It starts at zero, and is read once per decision; the limiter itself
//! gets the time as an argument.
//!
//! A system call would take longer than the decision itself and stall the processor. If the kernel trusts the
//! processor's time-stamp counter, the counter is read directly. Otherwise (a virtual machine that can migrate, an old
//! processor), the system clock is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tollgate_core::time::{Moment, Span};

/// Measures the time since its start. Clones return the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The processor's counter, its value at the start, and its pace (see [`PACE_BITS`]).
    Counter { counter: quanta::Clock, start: u64, pace: u64 },
    /// The system clock.
    System { start: Instant },
    /// A clock that a test advances.
    Hand { nanos: Arc<AtomicU64> },
}

/// The pace of a counter is the number of nanoseconds in which it advances by 2^`PACE_BITS`. The error is
/// below one millisecond in a thousand years. It is computed once, because every decision reads the clock.
const PACE_BITS: u32 = 48;

/// Controls a clock that was created with [`Clock::by_hand`].
#[derive(Clone, Debug)]
pub struct Hand(Arc<AtomicU64>);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        if kernel_trusts_counter() { Self::start_counter() } else { Self::start_system() }
    }

    fn start_counter() -> Self {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        let pace = counter.delta_as_nanos(0, 1 << PACE_BITS);
        Self(Source::Counter { counter, start, pace })
    }

    fn start_system() -> Self {
        Self(Source::System { start: Instant::now() })
    }

    /// A clock for tests, which advances only by its [`Hand`].
    pub fn by_hand() -> (Self, Hand) {
        let nanos = Arc::new(AtomicU64::new(0));
        (Self(Source::Hand { nanos: Arc::clone(&nanos) }), Hand(nanos))
    }

    /// The time since the start.
    #[inline]
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::Counter { counter, start, pace } => {
                let count = counter.raw().saturating_sub(*start);
                Moment::from_nanos(((u128::from(count) * u128::from(*pace)) >> PACE_BITS) as u64)
            }
            Source::System { start } => Moment::ZERO + Span::from(start.elapsed()),
            Source::Hand { nanos } => Moment::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

impl Hand {
    /// Lets `span` pass.
    pub fn advance(&self, span: Span) {
        self.set(Moment::from_nanos(self.0.load(Ordering::Relaxed)) + span);
    }

    /// Sets the clock to `moment`, even to a past one.
    pub fn set(&self, moment: Moment) {
        self.0.store(moment.as_nanos(), Ordering::Relaxed);
    }
}

/// Whether the kernel uses the processor's counter for its own time, so that it is steady and the same on all
/// cores.
fn kernel_trusts_counter() -> bool {
    let source = if cfg!(target_arch = "aarch64") { "arch_sys_counter" } else { "tsc" };
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|current| current.trim() == source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back_and_agrees_with_the_system() {
        for clock in [Clock::start(), Clock::start_counter(), Clock::start_system()] {
            let (before, system) = (clock.now(), Instant::now());
            let mut last = before;
            while system.elapsed().as_millis() < 20 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
            let (ours, theirs) = (clock.now().since(before).as_nanos() as f64, system.elapsed().as_nanos() as f64);
            // The thread may be descheduled between the two readings.
            assert!((ours / theirs - 1.0).abs() < 0.5, "{ours} against {theirs}");
        }
    }

    #[test]
    fn a_clock_by_hand_stands_still_until_it_is_moved() {
        let (clock, hand) = Clock::by_hand();
        assert_eq!(clock.now(), Moment::ZERO);
        hand.advance(Span::from_secs(3));
        assert_eq!(clock.clone().now(), Moment::from_millis(3_000));
        hand.set(Moment::from_millis(1));
        assert_eq!(clock.now(), Moment::from_millis(1));
    }
}

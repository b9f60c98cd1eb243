//! The schedule of calls at a fixed rate, and the latencies that are measured with it.
//!
//! Latencies count from due times, so that a slow server cannot delay the load and hide its own delay. The delays of
//! the load itself are not the server's: other processes, and the hypervisor, take the core of the load thread now and
//! then. The thread never sleeps, so any time that is not its CPU time is such a delay. It moves the rest of the
//! schedule, and the calls in flight during it are not counted.

use std::time::{Duration, Instant};

use tollgate_storm::cpu;

/// Delays of the load thread from this length on are recognised.
const STALL: Duration = Duration::from_micros(100);

/// Latencies of calls at a fixed rate.
#[derive(Default)]
pub(crate) struct Latencies {
    /// In microseconds.
    pub(crate) micros: Vec<f64>,
    /// The share of time in which the load thread did not run.
    pub(crate) stalled: f64,
}

impl Latencies {
    /// The latency that this part of the calls does not exceed, in microseconds.
    pub(crate) fn quantile(&mut self, part: f64) -> f64 {
        self.micros.sort_by(f64::total_cmp);
        self.micros.get((self.micros.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
    }
}

/// The schedule.
pub(crate) struct Pace {
    start: Instant,
    start_cpu: Duration,
    per_second: f64,
    /// The time of the last check.
    checked: Instant,
    /// The number and the total length of the stalls.
    stalls: usize,
    stalled: Duration,
}

impl Pace {
    pub(crate) fn start(per_second: f64) -> Self {
        let (start, start_cpu) = (Instant::now(), cpu::thread_time());
        Self { start, start_cpu, per_second, checked: start, stalls: 0, stalled: Duration::ZERO }
    }

    /// The due time of the call with this number.
    pub(crate) fn due(&self, call: usize) -> Instant {
        self.start + self.stalled + Duration::from_secs_f64(call as f64 / self.per_second)
    }

    /// Returns the number of stalls so far. Must be called between any two steps of the load.
    pub(crate) fn check(&mut self) -> usize {
        let now = Instant::now();
        if now - self.checked >= STALL {
            let lost = (now - self.start).saturating_sub(cpu::thread_time() - self.start_cpu);
            if lost >= self.stalled + STALL {
                self.stalled = lost;
                self.stalls += 1;
            }
        }
        self.checked = now;
        self.stalls
    }

    /// The share of time in which the thread did not run.
    pub(crate) fn stalled(&self) -> f64 {
        self.stalled.as_secs_f64() / self.start.elapsed().as_secs_f64()
    }
}

//! The site's counters: requests and exact CPU time per crowd, measured by the CPU clock of each thread. The site sends
//! a [`Reading`] of them as JSON to benchmarks, which run in another process.

use crate::{cpu, crowd::Crowd};
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The live counters.
pub(crate) struct Counters {
    /// The start of the site.
    opened: Instant,
    /// As in [`Reading`].
    requests: [AtomicU64; 3],
    cpu_ns: [AtomicU64; 3],
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The time since the site started.
    pub uptime: Duration,
    /// The CPU time of the whole site, including time that no crowd is charged for.
    pub process_cpu: Duration,
    /// Started requests per crowd, in the order of [`Crowd::ALL`].
    pub requests: [u64; 3],
    /// CPU time per crowd so far, in the order of [`Crowd::ALL`], including unfinished requests.
    pub cpu: [Duration; 3],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { opened: Instant::now(), requests: Default::default(), cpu_ns: Default::default() }
    }

    /// Counts a request when it starts.
    pub(crate) fn begin(&self, crowd: Crowd) {
        self.requests[crowd as usize].fetch_add(1, Relaxed);
    }

    /// Adds CPU time of a request.
    pub(crate) fn spend(&self, crowd: Crowd, cpu: Duration) {
        let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.cpu_ns[crowd as usize].fetch_add(cpu_ns, Relaxed);
    }

    pub(crate) fn read(&self) -> Reading {
        Reading {
            uptime: self.opened.elapsed(),
            process_cpu: cpu::process_time(),
            requests: Crowd::ALL.map(|crowd| self.requests[crowd as usize].load(Relaxed)),
            cpu: Crowd::ALL.map(|crowd| Duration::from_nanos(self.cpu_ns[crowd as usize].load(Relaxed))),
        }
    }
}

impl Reading {
    /// The CPU time of `crowd`.
    pub const fn cpu_of(&self, crowd: Crowd) -> Duration {
        self.cpu[crowd as usize]
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let index = [0, 1, 2];
        Self {
            uptime: self.uptime.saturating_sub(earlier.uptime),
            process_cpu: self.process_cpu.saturating_sub(earlier.process_cpu),
            requests: index.map(|index| self.requests[index].saturating_sub(earlier.requests[index])),
            cpu: index.map(|index| self.cpu[index].saturating_sub(earlier.cpu[index])),
        }
    }

    pub(crate) fn to_json(self) -> String {
        serde_json::to_string(&self).expect("every field has a JSON form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_parsed_as_it_was_written() {
        let counters = Counters::new();
        counters.begin(Crowd::Office);
        counters.spend(Crowd::Crawler, Duration::from_millis(300));
        let reading = counters.read();
        assert_eq!(serde_json::from_str::<Reading>(&reading.to_json()).unwrap(), reading);
        assert_eq!(reading.requests, [0, 1, 0]);
        assert_eq!(reading.cpu_of(Crowd::Crawler), Duration::from_millis(300));
    }

    #[test]
    fn a_difference_of_snapshots_covers_the_time_between_them() {
        let counters = Counters::new();
        counters.spend(Crowd::Human, Duration::from_millis(20));
        let before = counters.read();
        counters.spend(Crowd::Human, Duration::from_millis(50));
        assert_eq!(counters.read().since(&before).cpu_of(Crowd::Human), Duration::from_millis(50));
    }
}

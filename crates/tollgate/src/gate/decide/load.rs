//! Determines the band, the load level of the backend: normal, elevated or critical. Penalties of rules grow with it.
//!
//! Once a second, the worst of four measurements counts: the waits of requests in the queue, the CPU pressure if a file
//! provides it, the load that applications report, and the lateness of the gate's own threads. All are expressed as a
//! waiting time. The band is updated without traffic too, so that it recovers when the traffic that caused it ends.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::band::{Band, Edges, Gauge};
use tollgate_core::time::{Moment, Span};

use super::kernel::Watched;

/// The interval of updates.
const WINDOW: Span = Span::from_secs(1);

/// The band and its measurements.
pub(crate) struct Load {
    /// The band, for every request to read.
    band: AtomicU8,
    /// The total lateness of the workers' periodic work in this window, and the number of its samples.
    late_ns: AtomicU64,
    late_samples: AtomicU64,
    /// The worst load that applications have reported in this window, in nanoseconds plus one; 0 without a report. The
    /// offset distinguishes a report of no load from no report.
    reported_ns_plus_one: AtomicU64,
    /// The time of the last report.
    reported_at_ns: AtomicU64,
    /// The band that the settings pin; [`UNPINNED`] if they pin none.
    pinned: AtomicU8,
    state: Mutex<LoadState>,
}

const UNPINNED: u8 = u8::MAX;
/// The time for which a report counts if no other follows.
const REPORT_KEPT: Span = Span::from_secs(5);

/// The state of the updates.
struct LoadState {
    gauge: Gauge,
    /// The waiting times at which the elevated and the critical band begin.
    edges: Edges,
    /// The file with the CPU pressure.
    pressure: Option<Watched>,
    /// The worst load of the last window with a report.
    reported: Span,
    /// The time of the last update.
    updated_at: Moment,
}

/// The CPU pressures, in thousandths, that count as much as a wait at the edges of elevated and critical.
const ELEVATED_MILLI: u64 = 200;
const CRITICAL_MILLI: u64 = 600;

/// The wait that counts as much as this pressure, by linear interpolation between the edges.
fn wait_like_pressure(milli: u32, edges: Edges) -> Span {
    let (milli, elevated, critical) = (u64::from(milli), edges.elevated().as_nanos(), edges.critical().as_nanos());
    let nanos = match milli.checked_sub(ELEVATED_MILLI) {
        None => elevated / ELEVATED_MILLI * milli,
        Some(above) => elevated + (critical - elevated) / (CRITICAL_MILLI - ELEVATED_MILLI) * above,
    };
    Span::from_nanos(nanos)
}

impl Load {
    /// Starts in the normal band, with these edges and this pressure file.
    pub(crate) fn new(edges: Edges, pressure: Option<PathBuf>, now: Moment) -> Self {
        let pressure = pressure.map(Watched::new);
        let state = LoadState { gauge: Gauge::new(edges), edges, pressure, reported: Span::ZERO, updated_at: now };
        let [late_ns, late_samples, reported_ns_plus_one, reported_at_ns] = std::array::from_fn(|_| AtomicU64::new(0));
        let (band, pinned, state) = (AtomicU8::new(0), AtomicU8::new(UNPINNED), Mutex::new(state));
        Self { band, late_ns, late_samples, reported_ns_plus_one, reported_at_ns, pinned, state }
    }

    /// Applies new settings.
    pub(crate) fn reload(&self, edges: Edges, pressure: Option<PathBuf>) {
        let mut state = self.state.lock();
        state.edges = edges;
        state.gauge.set_edges(edges);
        if state.pressure.as_ref().map(|file| &file.path) != pressure.as_ref() {
            state.pressure = pressure.map(Watched::new);
        }
    }

    /// Pins the band, so that measurements do not change it; none unpins it.
    pub(crate) fn pin(&self, band: Option<Band>) {
        let pinned = band.map_or(UNPINNED, |band| band as u8);
        if self.pinned.swap(pinned, Ordering::Relaxed) != pinned {
            tracing::warn!(band = band.map_or("none", Band::as_str), "the pinned band has changed");
        }
    }

    /// Records the load of an application: how long its work waits.
    pub(crate) fn report(&self, lag: Span, now: Moment) {
        self.reported_ns_plus_one.fetch_max(lag.as_nanos().saturating_add(1), Ordering::Relaxed);
        self.reported_at_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The worst report of this window. Without one, the value `before`, until [`REPORT_KEPT`] after the last report.
    fn reported(&self, before: Span, now: Moment) -> Span {
        let at = Moment::from_nanos(self.reported_at_ns.load(Ordering::Relaxed));
        match self.reported_ns_plus_one.swap(0, Ordering::Relaxed) {
            0 if now.since(at) > REPORT_KEPT => Span::ZERO,
            0 => before,
            worst => Span::from_nanos(worst - 1),
        }
    }

    /// Records by how much later than planned a worker did its periodic work.
    pub(crate) fn late(&self, by: Span) {
        self.late_ns.fetch_add(by.as_nanos(), Ordering::Relaxed);
        self.late_samples.fetch_add(1, Ordering::Relaxed);
    }

    /// The average lateness of workers since the last call.
    fn take_late(&self) -> Span {
        let (late, samples) = (self.late_ns.swap(0, Ordering::Relaxed), self.late_samples.swap(0, Ordering::Relaxed));
        Span::from_nanos(late.checked_div(samples).unwrap_or(0))
    }

    /// Updates the band if a window has ended; `wait` returns how long requests waited in the queue in this window.
    pub(crate) fn tick(&self, now: Moment, wait: impl FnOnce() -> Span) {
        // Another worker is updating it.
        let Some(mut state) = self.state.try_lock() else { return };
        if now.since(state.updated_at) < WINDOW {
            return;
        }
        state.updated_at = now;
        let edges = state.edges;
        let pressure = state.pressure.as_mut().and_then(Watched::pressure_milli);
        let pressure = pressure.map_or(Span::ZERO, |milli| wait_like_pressure(milli, edges));
        state.reported = self.reported(state.reported, now);
        let worst = wait().max(self.take_late()).max(pressure).max(state.reported);
        let reading = state.gauge.record(worst);
        self.band.store(reading.band as u8, Ordering::Relaxed);
        if reading.band != reading.was {
            let (band, was) = (reading.band.as_str(), reading.was.as_str());
            let (sustained_ms, latest_ms) = (reading.sustained.as_millis_ceil(), reading.latest.as_millis_ceil());
            if reading.band > reading.was {
                tracing::warn!(band, was, sustained_ms, latest_ms, "the band has changed");
            } else {
                tracing::info!(band, was, sustained_ms, latest_ms, "the band has changed");
            }
        }
    }

    /// The band in force: the pinned one, or else the measured one.
    pub(crate) fn band(&self) -> Band {
        let pinned = self.pinned.load(Ordering::Relaxed);
        match if pinned == UNPINNED { self.band.load(Ordering::Relaxed) } else { pinned } {
            0 => Band::Normal,
            1 => Band::Elevated,
            _ => Band::Critical,
        }
    }

    /// The waiting time on which the measured band is based: the median of the recent windows.
    pub(crate) fn sustained(&self) -> Span {
        self.state.lock().gauge.sustained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges() -> Edges {
        Edges::new(Span::from_millis(100), Span::from_millis(250)).unwrap()
    }

    fn second(n: u64) -> Moment {
        Moment::from_millis(1_000 * n)
    }

    #[test]
    fn pressure_and_a_gate_that_is_late_count_as_waiting_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu.pressure");
        let load = Load::new(edges(), Some(path.clone()), Moment::ZERO);
        let ten_seconds = |from: u64| (from..from + 10).for_each(|n| load.tick(second(n), || Span::ZERO));
        ten_seconds(1);
        assert_eq!(load.band(), Band::Normal, "there is no such file");
        std::fs::write(&path, "some avg10=20.00 avg60=0.00 avg300=0.00 total=0\n").unwrap();
        ten_seconds(11);
        assert_eq!((load.band(), load.sustained()), (Band::Elevated, Span::from_millis(100)));
        std::fs::write(&path, "some avg10=60.00 avg60=0.00 avg300=0.00 total=0\n").unwrap();
        ten_seconds(21);
        assert_eq!((load.band(), load.sustained()), (Band::Critical, Span::from_millis(250)));
        load.reload(edges(), None);
        ten_seconds(31);
        assert_eq!(load.band(), Band::Normal);
        for n in 41..51 {
            (0..10).for_each(|_| load.late(Span::from_millis(120)));
            load.tick(second(n), || Span::ZERO);
        }
        assert_eq!((load.band(), load.sustained()), (Band::Elevated, Span::from_millis(120)));
    }

    #[test]
    fn the_worst_report_of_a_second_counts_until_it_is_too_old() {
        let load = Load::new(edges(), None, Moment::ZERO);
        for n in 1..=10 {
            load.report(Span::from_millis(150), second(n));
            load.report(Span::from_millis(20), second(n));
            load.tick(second(n), || Span::ZERO);
        }
        assert_eq!((load.band(), load.sustained()), (Band::Elevated, Span::from_millis(150)));
        // Without a report for four seconds nothing changes; from the sixth second on there is no load.
        (11..=14).for_each(|n| load.tick(second(n), || Span::ZERO));
        assert_eq!(load.sustained(), Span::from_millis(150));
        (15..=40).for_each(|n| load.tick(second(n), || Span::ZERO));
        assert_eq!(load.band(), Band::Normal);
        load.pin(Some(Band::Critical));
        load.tick(second(41), || Span::ZERO);
        assert_eq!(load.band(), Band::Critical);
        load.pin(None);
        assert_eq!(load.band(), Band::Normal);
    }

    #[test]
    fn reports_of_no_load_replace_an_earlier_spike() {
        for interval_ms in [500, 1_500, 4_000] {
            let load = Load::new(edges(), None, Moment::ZERO);
            load.report(Span::from_millis(5_000), Moment::ZERO);
            for ms in (500..=30_000).step_by(500) {
                let now = Moment::from_millis(ms);
                if ms % interval_ms == 0 {
                    load.report(Span::ZERO, now);
                }
                load.tick(now, || Span::ZERO);
            }
            let measured = (load.band(), load.sustained());
            assert_eq!(measured, (Band::Normal, Span::ZERO), "reports every {interval_ms} ms");
        }
    }

    #[test]
    fn the_band_follows_sustained_load_and_recovers_without_traffic() {
        let load = Load::new(edges(), None, Moment::ZERO);
        for n in 1..=20 {
            load.tick(second(n), || Span::from_millis(300));
            load.tick(second(n), || panic!("once per window"));
        }
        assert_eq!((load.band(), load.sustained()), (Band::Critical, Span::from_millis(300)));
        for n in 21..=40 {
            load.tick(second(n), || Span::ZERO);
        }
        assert_eq!(load.band(), Band::Normal);
    }
}

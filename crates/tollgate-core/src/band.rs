//! The band of the backend: normal, elevated or critical load.
//!
//! The gate measures a delay in each window of one second, such as the wait of its requests for the backend, and gives
//! it to a [`Gauge`], which determines the band. Comparing each measure with a threshold would follow the noise: one
//! slow second per minute keeps a machine "elevated" for weeks, and an exit that needs a run of clean seconds never
//! happens. A band is therefore entered on a sustained measure, the median of the last [`WINDOWS`] windows, or
//! immediately on a catastrophic one. It is left, one step per window, when the median falls to half the threshold and
//! none of the last [`DWELL_WINDOWS`] windows was catastrophic. Without the latter condition, a spike every few seconds
//! would change the band three times per spike, because the median never rises and the band is left as soon as it is
//! entered. The median is published with the band, so that a snapshot explains why the band was chosen.

use crate::time::Span;

/// The number of windows of which the median is taken: 15 seconds.
pub const WINDOWS: usize = 15;
/// A measure of this many times the critical threshold is catastrophic and does not wait for the median.
const CATASTROPHE_FACTOR: u64 = 4;

/// A band is kept for this many windows after a catastrophic one, which is included.
pub const DWELL_WINDOWS: u32 = 7;

crate::named_enum! {
    /// The load level of the backend. It lengthens the penalty of a client that exceeds its own limit, and affects no
    /// other client.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Band {
        /// Normal load.
        #[default]
        Normal = "normal",
        /// Queueing has been noticeable for some time.
        Elevated = "elevated",
        /// Queueing is severe, or one measure was catastrophic.
        Critical = "critical",
    }
}

/// The thresholds of the bands. Each band is left at half its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    elevated: Span,
    critical: Span,
}

impl Edges {
    /// `None` if a threshold is zero or the critical one is not the larger.
    pub fn new(elevated: Span, critical: Span) -> Option<Self> {
        (!elevated.is_zero() && elevated < critical).then_some(Self { elevated, critical })
    }

    /// The threshold of the elevated band.
    pub const fn elevated(self) -> Span {
        self.elevated
    }

    /// The threshold of the critical band.
    pub const fn critical(self) -> Span {
        self.critical
    }

    fn is_catastrophe(self, latest: Span) -> bool {
        latest >= self.critical.times(CATASTROPHE_FACTOR)
    }

    /// The band that follows `band`, without regard to earlier catastrophic windows.
    fn band_after(self, band: Band, sustained: Span, latest: Span) -> Band {
        if self.is_catastrophe(latest) || sustained >= self.critical {
            return Band::Critical;
        }
        match band {
            Band::Normal if sustained >= self.elevated => Band::Elevated,
            Band::Critical if sustained <= half(self.critical) => Band::Elevated,
            Band::Elevated if sustained <= half(self.elevated) => Band::Normal,
            Band::Normal | Band::Elevated | Band::Critical => band,
        }
    }
}

const fn half(edge: Span) -> Span {
    Span::from_nanos(edge.as_nanos() / 2)
}

/// Turns one measure per window, a length of time by which the backend is late, into a band.
#[derive(Clone, Debug)]
pub struct Gauge {
    edges: Edges,
    band: Band,
    /// Windows before the start count as zero, so that one bad window after a start is not sustained.
    windows: [Span; WINDOWS],
    /// The index of the oldest window, which the next measure replaces.
    oldest: usize,
    /// Windows since the last catastrophic one, which is included.
    since_catastrophe: u32,
}

/// The effect of a window on the band, with the values that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandReading {
    /// The previous band.
    pub was: Band,
    /// The new band.
    pub band: Band,
    /// The median of the last windows.
    pub sustained: Span,
    /// The measure of this window.
    pub latest: Span,
}

impl Gauge {
    /// A gauge without measurements, in the normal band.
    pub const fn new(edges: Edges) -> Self {
        Self { edges, band: Band::Normal, windows: [Span::ZERO; WINDOWS], oldest: 0, since_catastrophe: DWELL_WINDOWS }
    }

    /// The current band.
    pub const fn band(&self) -> Band {
        self.band
    }

    /// Records the measure of one window. A window without a measurement counts as [`Span::ZERO`].
    pub fn record(&mut self, latest: Span) -> BandReading {
        self.windows[self.oldest] = latest;
        self.oldest = (self.oldest + 1) % WINDOWS;
        let sustained = self.sustained();
        let was = self.band;
        self.since_catastrophe = self.since_catastrophe.saturating_add(1);
        if self.edges.is_catastrophe(latest) {
            self.since_catastrophe = 0;
        }
        let next = self.edges.band_after(was, sustained, latest);
        self.band = if self.since_catastrophe < DWELL_WINDOWS { was.max(next) } else { next };
        BandReading { was, band: self.band, sustained, latest }
    }

    /// The median of the last windows.
    pub fn sustained(&self) -> Span {
        let mut sorted = self.windows;
        sorted.sort_unstable();
        sorted[WINDOWS / 2]
    }

    /// Changes the thresholds and keeps the measurements.
    pub fn set_edges(&mut self, edges: Edges) {
        self.edges = edges;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn edges() -> Edges {
        Edges::new(Span::from_millis(100), Span::from_millis(250)).unwrap()
    }

    fn gauge() -> Gauge {
        Gauge::new(edges())
    }

    fn bands(gauge: &mut Gauge, windows_ms: &[u64]) -> Vec<Band> {
        windows_ms.iter().map(|&ms| gauge.record(Span::from_millis(ms)).band).collect()
    }

    use Band::{Critical, Elevated, Normal};

    /// Tests the transition alone, with a measure on each side of every threshold.
    #[test]
    fn edges_are_inclusive_on_the_way_up_and_on_the_way_down() {
        let check = |band, sustained_ms, latest_ms, expect| {
            let next = edges().band_after(band, Span::from_millis(sustained_ms), Span::from_millis(latest_ms));
            assert_eq!(next, expect, "{band:?} {sustained_ms} {latest_ms}");
        };
        check(Normal, 99, 99, Normal);
        check(Normal, 100, 100, Elevated);
        check(Normal, 249, 249, Elevated);
        check(Normal, 250, 250, Critical);
        check(Normal, 20, 999, Normal);
        check(Normal, 20, 1000, Critical);
        check(Elevated, 51, 51, Elevated);
        check(Elevated, 50, 50, Normal);
        check(Elevated, 249, 20, Elevated);
        check(Elevated, 250, 20, Critical);
        check(Critical, 126, 20, Critical);
        check(Critical, 125, 20, Elevated);
        check(Critical, 0, 0, Elevated);
        check(Critical, 0, 1000, Critical);
    }

    #[test]
    fn one_spike_among_calm_windows_stays_normal() {
        let mut gauge = gauge();
        assert_eq!(bands(&mut gauge, &[999, 20, 20]), [Normal; 3]);
        bands(&mut gauge, &[20; WINDOWS]);
        assert_eq!(bands(&mut gauge, &[999, 20, 20]), [Normal; 3]);
    }

    /// A production machine sat "elevated" for 16 days on this distribution, its median at the 20 ms floor.
    #[test]
    fn a_spike_in_two_windows_of_five_reads_normal() {
        let mut gauge = gauge();
        for _ in 0..10_000 {
            assert_eq!(bands(&mut gauge, &[20, 400, 20, 999, 20]), [Normal; 5]);
        }
    }

    #[test]
    fn a_catastrophe_is_critical_at_once_and_heals_one_step_per_window() {
        let mut gauge = gauge();
        bands(&mut gauge, &[20; WINDOWS]);
        assert_eq!(bands(&mut gauge, &[1000, 20, 20, 20, 20, 20, 20]), [Critical; DWELL_WINDOWS as usize]);
        assert_eq!(bands(&mut gauge, &[20, 20, 20]), [Elevated, Normal, Normal]);
    }

    /// Eight changes in seven seconds were logged, all with a median of 1 ms, before [`DWELL_WINDOWS`] existed.
    #[test]
    fn spikes_every_few_windows_do_not_make_the_band_flicker() {
        let mut gauge = gauge();
        let windows = [1000, 1, 1000, 1, 1, 1000, 1, 1, 1, 1, 1000, 1, 1, 1, 1, 1, 1, 1000];
        assert_eq!(bands(&mut gauge, &windows), [Critical; 18]);
        assert_eq!(gauge.sustained(), Span::from_millis(1));
    }

    #[test]
    fn a_sustained_measure_enters_when_it_is_the_median_and_leaves_when_calm_is() {
        let mut gauge = gauge();
        bands(&mut gauge, &[20; WINDOWS]);
        assert_eq!(bands(&mut gauge, &[300; 8])[6..], [Normal, Critical]);
        bands(&mut gauge, &[300; 60]);
        // Seven calm windows are outvoted; with the eighth the median is calm.
        assert_eq!(bands(&mut gauge, &[20; 10])[6..], [Critical, Elevated, Normal, Normal]);
    }

    /// A customer stayed critical for seven hours after an incident; only a restart cleared it.
    #[test]
    fn seven_hours_of_load_are_forgotten_within_nine_calm_windows() {
        let mut gauge = gauge();
        bands(&mut gauge, &[900; 7 * 3600]);
        assert_eq!(bands(&mut gauge, &[20; 9]).last(), Some(&Normal));
    }

    #[test]
    fn between_the_edges_a_band_is_kept() {
        let mut gauge = gauge();
        bands(&mut gauge, &[120; WINDOWS]);
        assert_eq!(bands(&mut gauge, &[60; 30]).last(), Some(&Elevated));
        assert_eq!(bands(&mut gauge, &[50; 8]).last(), Some(&Normal));
        assert_eq!(bands(&mut gauge, &[60; 30]).last(), Some(&Normal));
    }

    #[test]
    fn the_deciding_measure_is_published() {
        let mut gauge = gauge();
        bands(&mut gauge, &[300; 7]);
        assert_eq!(gauge.sustained(), Span::ZERO);
        let reading = gauge.record(Span::from_millis(400));
        assert_eq!((reading.sustained, reading.latest), (Span::from_millis(300), Span::from_millis(400)));
    }

    #[test]
    fn invalid_thresholds_are_rejected() {
        assert_eq!(Edges::new(Span::ZERO, Span::from_millis(1)), None);
        assert_eq!(Edges::new(Span::from_millis(2), Span::from_millis(2)), None);
        assert!(Edges::new(Span::from_nanos(1), Span::MAX).is_some());
    }

    proptest! {
        #[test]
        fn any_history_heals_within_nine_calm_windows(history in prop::collection::vec(any::<u64>(), 0..100)) {
            let mut gauge = gauge();
            for nanos in history {
                gauge.record(Span::from_nanos(nanos));
            }
            bands(&mut gauge, &[0; 9]);
            prop_assert_eq!(gauge.band(), Normal);
        }

        #[test]
        fn a_band_is_explained_by_its_reading(history in prop::collection::vec(0u64..1_500, 1..200)) {
            let mut gauge = gauge();
            for ms in history {
                let reading = gauge.record(Span::from_millis(ms));
                let next = edges().band_after(reading.was, reading.sustained, reading.latest);
                let is_kept = reading.band == reading.was && next < reading.was;
                prop_assert!(reading.band == next || is_kept);
                // Down only one step at a time, and only from below the lower edge.
                prop_assert!(!(reading.was == Critical && reading.band == Normal));
                if reading.band < reading.was {
                    prop_assert!(reading.sustained <= Span::from_millis(125));
                }
            }
        }
    }
}

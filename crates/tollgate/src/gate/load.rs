//! How loaded the backend is: the band, decided on once a second from how long requests wait at the gate.
//!
//! It is decided on whether or not there is traffic, so that it heals when the traffic that caused it has gone.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate_core::band::{Band, Edges, Gauge};
use tollgate_core::time::{Moment, Span};

/// How often the band is decided on.
const WINDOW: Span = Span::from_secs(1);

/// The band and what it is decided on.
pub(crate) struct Load {
    /// The band, where every request can read it.
    band: AtomicU8,
    gauge: Mutex<Looked>,
}

struct Looked {
    gauge: Gauge,
    at: Moment,
}

impl Load {
    pub(crate) fn new(edges: Edges, now: Moment) -> Self {
        Self { band: AtomicU8::new(0), gauge: Mutex::new(Looked { gauge: Gauge::new(edges), at: now }) }
    }

    pub(crate) fn reload(&self, edges: Edges) {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner).gauge.set_edges(edges);
    }

    /// Decides on the band if a window is over; `wait` is how long requests have waited in it.
    pub(crate) fn tick(&self, now: Moment, wait: impl FnOnce() -> Span) {
        // Whoever comes second has nothing to do.
        let Ok(mut looked) = self.gauge.try_lock() else { return };
        if now.since(looked.at) < WINDOW {
            return;
        }
        looked.at = now;
        let reading = looked.gauge.record(wait());
        self.band.store(reading.band as u8, Ordering::Relaxed);
        if reading.band != reading.was {
            let (band, was) = (reading.band.as_str(), reading.was.as_str());
            let (sustained_ms, latest_ms) = (reading.sustained.as_millis_ceil(), reading.latest.as_millis_ceil());
            tracing::warn!(band, was, sustained_ms, latest_ms, "the band has changed");
        }
    }

    /// The band.
    pub(crate) fn band(&self) -> Band {
        match self.band.load(Ordering::Relaxed) {
            0 => Band::Normal,
            1 => Band::Elevated,
            _ => Band::Critical,
        }
    }

    /// The measure that the band was decided on.
    pub(crate) fn sustained(&self) -> Span {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner).gauge.sustained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_band_follows_what_is_sustained_and_heals_without_traffic() {
        let load = Load::new(Edges::new(Span::from_millis(100), Span::from_millis(250)).unwrap(), Moment::ZERO);
        let second = |n: u64| Moment::from_millis(1_000 * n);
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

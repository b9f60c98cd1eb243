//! Throughput, p99 and refusals of one stage of one run.

use crate::load::Sample;
use serde::Serialize;
use std::{ops::Range, time::Duration};
use tollgate_storm::tally::{Failure, percentile};

/// A part of a run that is reported and judged on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    /// The first 4 s of a gate that has never seen the backend.
    Cold,
    /// The first of these seconds.
    ColdFirstSecond,
    /// The three seconds after it.
    ColdRest,
    /// The time after those 4 s.
    Warm,
    /// The burst at the start of the gate.
    Burst0s,
    /// The burst 3 s later.
    Burst3s,
    /// The burst 6 s later.
    Burst6s,
}

impl Stage {
    pub(crate) const BURSTS: [Self; 3] = [Self::Burst0s, Self::Burst3s, Self::Burst6s];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold, 0 to 4 s",
            Self::ColdFirstSecond => "cold, first second",
            Self::ColdRest => "cold, 1 to 4 s",
            Self::Warm => "warm",
            Self::Burst0s => "burst at 0 s",
            Self::Burst3s => "burst at 3 s",
            Self::Burst6s => "burst at 6 s",
        }
    }

    /// Whether the gate has not seen the backend for a second yet.
    pub(crate) const fn is_first_second(self) -> bool {
        matches!(self, Self::ColdFirstSecond | Self::Burst0s)
    }

    pub(crate) const fn is_burst(self) -> bool {
        matches!(self, Self::Burst0s | Self::Burst3s | Self::Burst6s)
    }
}

/// The measured values of one target in one stage of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Responses with status 200 per second.
    pub(crate) served_per_second: f64,
    /// The p99 of the latency of served requests; not a number if none was served.
    pub(crate) p99_ms: f64,
    /// Responses with another status.
    pub(crate) refused: u64,
    /// Requests without a response.
    pub(crate) failed: u64,
}

impl Figures {
    /// Of a closed loop. Throughput counts the responses in `window`; the rest counts the requests that started in
    /// it, also those that ended after it. So a request that waits long is neither lost nor counted twice.
    pub(crate) fn of_window(samples: &[Sample], window: &Range<Duration>) -> Self {
        let ended = samples.iter().filter(|sample| sample.outcome.is_ok() && window.contains(&sample.end)).count();
        let started: Vec<&Sample> = samples.iter().filter(|sample| window.contains(&sample.start)).collect();
        Self::new(&started, ended as f64 / (window.end - window.start).as_secs_f64())
    }

    /// Of a burst: throughput is that of the time until the last served request ended.
    pub(crate) fn of_burst(samples: &[Sample]) -> Self {
        let served = || samples.iter().filter(|sample| sample.outcome.is_ok());
        let last = served().map(|sample| sample.end).max().unwrap_or(Duration::MAX);
        Self::new(&samples.iter().collect::<Vec<_>>(), served().count() as f64 / last.as_secs_f64())
    }

    fn new(samples: &[&Sample], served_per_second: f64) -> Self {
        let count = |is: fn(&Failure) -> bool| {
            samples.iter().filter(|sample| sample.outcome.is_err_and(|f| is(&f))).count() as u64
        };
        let served = samples.iter().filter(|sample| sample.outcome.is_ok());
        let mut times: Vec<Duration> = served.map(|sample| sample.end - sample.start).collect();
        Self {
            served_per_second,
            p99_ms: percentile(&mut times, 99.0).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3),
            refused: count(|failure| matches!(failure, Failure::Refused(_))),
            failed: count(|failure| !matches!(failure, Failure::Refused(_))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start_ms: u64, end_ms: u64, outcome: Result<(), Failure>) -> Sample {
        Sample { start: Duration::from_millis(start_ms), end: Duration::from_millis(end_ms), outcome }
    }

    #[test]
    fn a_request_counts_where_it_started_and_its_response_where_it_ended() {
        let samples = [
            sample(0, 500, Ok(())),
            sample(500, 1500, Ok(())),
            sample(900, 901, Err(Failure::Refused(429))),
            sample(950, 9000, Err(Failure::Late)),
        ];
        let first = Figures::of_window(&samples, &(Duration::ZERO..Duration::from_secs(1)));
        assert_eq!(first, Figures { served_per_second: 1.0, p99_ms: 1000.0, refused: 1, failed: 1 });
        let rest = Figures::of_window(&samples, &(Duration::from_secs(1)..Duration::from_secs(3)));
        assert!((rest.served_per_second - 0.5).abs() < 1e-9 && rest.p99_ms.is_nan() && rest.refused == 0, "{rest:?}");
    }

    #[test]
    fn a_burst_lasts_until_its_last_served_request() {
        let samples = [sample(0, 250, Ok(())), sample(0, 500, Ok(())), sample(0, 900, Err(Failure::Refused(503)))];
        let figures = Figures::of_burst(&samples);
        assert_eq!(figures, Figures { served_per_second: 4.0, p99_ms: 500.0, refused: 1, failed: 0 });
        assert!(Figures::of_burst(&samples[2..]).served_per_second < 1e-9);
    }
}

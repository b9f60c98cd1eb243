//! The last hour of this process in samples of one second, for the charts of the console and of the command `doctor`
//! (`GET /api/v1/history`).

use std::collections::VecDeque;

use tollgate_core::time::Moment;

use super::monitored_role::{CurrentValues, Sample, Totals};

/// Samples that are kept, one per second.
const SECONDS_MAX: usize = 3600;

/// Samples of the last hour.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The latest sample is last.
    samples: VecDeque<Sample>,
    /// Time and totals of the last call of [`Self::take`].
    before: Option<(Moment, Totals)>,
}

impl History {
    /// Adds a sample: rates between the totals of the last call and these, which were read at `now`. The first call
    /// adds none.
    pub(super) fn take(&mut self, totals: Totals, now: Moment) {
        if let Some((then, before)) = self.before.replace((now, totals.clone())) {
            let secs = (now.since(then).as_nanos() as f64 / 1e9).max(0.001);
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / secs;
            let (requests, refused) = (rate(totals.requests, before.requests), rate(totals.refused, before.refused));
            self.samples.push_back(Sample {
                at_ms: now.as_nanos() / 1_000_000,
                admitted: round((requests - refused).max(0.0)),
                held: round(rate(totals.held, before.held)),
                refused: round(refused),
                cpu: round(((totals.toll_seconds - before.toll_seconds) / secs).max(0.0)),
                current: totals.current,
            });
        }
        if self.samples.len() > SECONDS_MAX {
            self.samples.pop_front();
        }
    }

    /// The latest sample.
    pub(super) fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// All samples, each `step` of them merged into one: averages of the rates, and the worst of the other values.
    pub(super) fn in_steps(&self, step: usize) -> Vec<Sample> {
        let samples: Vec<&Sample> = self.samples.iter().collect();
        samples.rchunks(step.max(1)).rev().filter_map(merge).collect()
    }
}

fn merge(samples: &[&Sample]) -> Option<Sample> {
    let last = *samples.last()?;
    let average =
        |of: fn(&Sample) -> f64| round(samples.iter().map(|sample| of(sample)).sum::<f64>() / samples.len() as f64);
    let values = || samples.iter().map(|sample| &sample.current);
    let most = |of: fn(&CurrentValues) -> u64| values().map(of).max().unwrap_or(0);
    let longest = |of: fn(&CurrentValues) -> Option<f64>| values().filter_map(of).max_by(f64::total_cmp);
    let bands = values().map(|now| now.band);
    let severity = |band: &str| ["normal", "elevated", "critical"].iter().position(|known| *known == band);
    Some(Sample {
        at_ms: last.at_ms,
        admitted: average(|sample| sample.admitted),
        held: average(|sample| sample.held),
        refused: average(|sample| sample.refused),
        cpu: average(|sample| sample.cpu),
        current: CurrentValues {
            waiting: most(|now| now.waiting),
            in_flight: most(|now| now.in_flight),
            in_flight_max: last.current.in_flight_max,
            connections: most(|now| now.connections),
            band: bands.max_by_key(|band| severity(band)).unwrap_or(last.current.band),
            sustained_ms: most(|now| now.sustained_ms),
            p50_ms: longest(|now| now.p50_ms),
            p99_ms: longest(|now| now.p99_ms),
        },
    })
}

/// Rounds to three decimals, because the samples are sent as JSON.
fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    #[test]
    fn a_sample_is_the_difference_of_two_totals() {
        let mut history = History::default();
        history.take(Totals { requests: 5, ..Totals::default() }, at(1));
        assert_eq!(history.last(), None);
        history.take(Totals { requests: 105, refused: 20, ..Totals::default() }, at(2));
        let last = history.last().unwrap();
        assert_eq!((last.admitted, last.refused, last.at_ms), (80.0, 20.0, 2000));
    }

    #[test]
    fn an_hour_is_kept_and_steps_show_the_worst_second() {
        let mut history = History::default();
        for secs in 0..5000 {
            let band = if secs == 4995 { "critical" } else { "normal" };
            let p99_ms = Some(if secs == 4995 { 900.0 } else { 1.0 });
            let current = CurrentValues { band, p99_ms, ..CurrentValues::default() };
            history.take(Totals { requests: secs * 10, current, ..Totals::default() }, at(secs));
        }
        assert_eq!(history.in_steps(1).len(), SECONDS_MAX);
        let steps = history.in_steps(10);
        assert_eq!(steps.len(), 360);
        let last = steps.last().unwrap();
        assert_eq!((last.current.band, last.current.p99_ms, last.admitted), ("critical", Some(900.0), 10.0));
    }
}

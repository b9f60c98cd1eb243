//! The first pass over an access log: it finds the order of the lines, the number of requests in flight over time, and
//! a sample of requests, and makes the [`Pricing`] from them.

use tollgate_core::time::{Moment, Span};

use super::backend_cores::{BackendCores, SampledRequest};
use super::in_flight_profile::InFlightProfile;
use super::{CostSource, Pricing, Shares, is_upgrade, route, stay};
use crate::replay::counts::millis;
use crate::replay::recorded_request::RecordedRequest;

/// The size of the sample, in requests.
const SAMPLE_MAX: usize = 1 << 17;

/// The findings of one pass over a recording.
#[derive(Default)]
pub(in crate::replay) struct Survey {
    /// The number of requests with a measured cost.
    measured: u64,
    /// The number of requests with a duration instead.
    durations: u64,
    /// The sum of these durations.
    recorded: Span,
    /// The latest time of any line so far.
    newest: Moment,
    /// The largest distance of a line from an earlier line with a later time.
    pub(crate) lateness: Span,
    /// How well the order of lines follows the logged time.
    logged_order: Order,
    /// How well it follows the logged time plus the duration.
    end_order: Order,
    /// The requests in flight, if the logged time is the end of a request.
    by_end: InFlightProfile,
    /// The requests in flight, if the logged time is the start of a request.
    by_start: InFlightProfile,
    /// A random sample of the requests with a duration.
    sample: Vec<SampledRequest>,
    /// The state of the random numbers.
    dice: u64,
}

/// Counts how often a sequence of times goes back.
#[derive(Default)]
struct Order {
    last: Moment,
    steps_back: u64,
}

impl Order {
    fn add(&mut self, at: Moment) {
        self.steps_back += u64::from(at < self.last);
        self.last = at;
    }
}

impl Survey {
    /// Adds a request.
    pub(in crate::replay) fn add(&mut self, request: &RecordedRequest<'_>) {
        let line = request.line;
        self.newest = self.newest.max(line.at);
        self.lateness = self.lateness.max(self.newest.since(line.at));
        self.measured += u64::from(line.is_measured);
        let Some(duration) = line.cost.filter(|_| !line.is_measured) else { return };
        self.durations += 1;
        self.recorded = self.recorded + duration;
        self.logged_order.add(line.at);
        self.end_order.add(line.at + duration);
        if is_upgrade(line) || duration.is_zero() {
            return;
        }
        for (profile, is_end_logged) in [(&mut self.by_end, true), (&mut self.by_start, false)] {
            let (start, end) = stay(line.at, duration, is_end_logged);
            profile.add(start, end);
        }
        self.sample(SampledRequest { at: line.at, duration, route: route(request) });
    }

    /// Adds a request to the sample, or drops it, so that all have about the same probability.
    fn sample(&mut self, request: SampledRequest) {
        if self.sample.len() < SAMPLE_MAX {
            return self.sample.push(request);
        }
        // Splitmix64: a fixed sequence, so that every replay gives the same result.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let index = ((u128::from(bits ^ (bits >> 31)) * u128::from(self.durations)) >> 64) as usize;
        if let Some(place) = self.sample.get_mut(index) {
            *place = request;
        }
    }

    /// The pricing of this recording. `cores` are those of the backend, if the operator stated them; `rough` allows a
    /// rough estimate where there is no duration.
    pub(in crate::replay) fn pricing(self, cores: Option<f64>, rough: bool) -> Pricing {
        if self.durations == 0 {
            return Pricing::as_recorded(match (self.measured > 0, rough) {
                (true, _) => CostSource::Measured,
                (false, true) => CostSource::RoughEstimate,
                (false, false) => CostSource::None,
            });
        }
        // Lines are written when requests end. If the logged times are in order, they are the ends; if the logged times
        // plus the durations are, the logged times are the starts.
        let is_end_logged = self.logged_order.steps_back <= self.end_order.steps_back;
        let profile = if is_end_logged { &self.by_end } else { &self.by_start };
        let mut pricing = Pricing::as_recorded(CostSource::Durations);
        pricing.summary.recorded_ms = millis(self.recorded);
        let Some(backend) = BackendCores::new(cores, &self.sample, profile, is_end_logged) else { return pricing };
        pricing.summary.cores_estimated = cores.is_none();
        let cores = backend.cores;
        // More digits would look more exact than the estimate is.
        pricing.summary.cores = Some((cores * 100.0).round() / 100.0);
        let is_short = |in_flight: f64| in_flight > cores;
        let slots = profile.means().filter(|in_flight| is_short(*in_flight)).count() as u64;
        pricing.summary.saturated_ms = millis(profile.slot_width().times(slots));
        if slots > 0 {
            pricing.summary.source = CostSource::Shares;
            pricing.shares = Some(Shares {
                is_end_logged,
                unsaturated: profile.integral(|in_flight| if is_short(in_flight) { 0.0 } else { 1.0 }),
                saturated: profile.integral(|in_flight| if is_short(in_flight) { cores / in_flight } else { 0.0 }),
                backend,
            });
        }
        pricing
    }
}

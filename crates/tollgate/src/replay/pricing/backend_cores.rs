//! Estimates the number of cores of the backend from a recording.
//!
//! While few requests are in flight, the duration of a request is its cost. While the backend is saturated, it
//! completes as much of this cost per second as it has cores, whether it serves the requests in turns or one after the
//! other. So the estimate is the usual cost of the requests that a saturated backend served, divided by the time that
//! it took. A request's part of that time is the integral of one over the number in flight.
//!
//! Routes that were never requested in calm times have no usual cost, such as pages that only a crawler requests. The
//! estimate leaves them out, which is right for a backend that serves requests in turns. On one that serves them one
//! after the other, a cheap request takes as long as an expensive one, so the estimate is too low if the expensive ones
//! are left out. It is therefore at least one core. The requests without a usual cost are charged the work that the
//! others leave of the saturated time.

use std::collections::HashMap;

use tollgate_core::time::{Moment, Span};

use super::in_flight_profile::InFlightProfile;
use super::stay;

/// A request of the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledRequest {
    pub(super) at: Moment,
    pub(super) duration: Span,
    /// The hash of its route.
    pub(super) route: u64,
}

/// The cores of a backend, and corrections of the shares of requests.
#[derive(Clone, Debug)]
pub(super) struct BackendCores {
    pub(super) cores: f64,
    /// By route: the usual cost divided by its share of the cores. It is 1 on a backend that serves all requests in
    /// turns. On one that serves them one after the other, a cheap request waits as long as an expensive one, and this
    /// corrects it.
    factors: HashMap<u64, f64>,
    /// The same for routes without a usual cost.
    other_factor: f64,
}

/// Requests with at most this many in flight on average did not wait for each other.
const CALM: f64 = 1.0;
/// If fewer requests than this were calm, those with the fewest in flight are used instead.
const CALM_REQUESTS_MIN: usize = 32;
/// A route needs this many calm requests to have a usual cost, and as many crowded ones to have a factor.
const ROUTE_REQUESTS_MIN: usize = 8;
/// Fewer requests in flight are not treated as saturation: durations vary for other reasons too.
const CROWD_MIN: f64 = 4.0;
/// A backend is saturated if durations exceed usual costs by this factor.
const INFLATION_MIN: f64 = 1.5;
/// Saturation is recognised only among this many requests.
const SATURATED_REQUESTS_MIN: usize = 16;
/// Estimates below this are taken for an error.
const CORES_MIN: f64 = 0.1;
/// The estimate is a lower bound if requests without a usual cost had more than this part of the saturated time.
const UNKNOWN_PART_MAX: f64 = 0.1;
/// The smallest backend that is assumed if the estimate is a lower bound.
const LOWER_BOUND_CORES_MIN: f64 = 1.0;
/// The largest correction of a share, and the inverse of the smallest.
const FACTOR_MAX: f64 = 10.0;
/// Number of repetitions that refine the estimate. Further ones change it by less than a hundredth.
const REFINEMENTS: usize = 4;

/// One request of the sample, with the number of requests in flight beside it.
struct Observed {
    route: u64,
    duration_s: f64,
    /// The mean number in flight, itself included.
    crowd: f64,
    /// The mean number of others in flight.
    others: f64,
    /// Its part of the time of the backend, if all requests in flight share the time equally.
    part_s: f64,
}

/// Sums over several requests. The first four are over those with a usual cost.
#[derive(Clone, Copy, Default)]
struct Sum {
    requests: usize,
    duration_s: f64,
    /// Their usual costs.
    usual_s: f64,
    /// Their parts of the time.
    part_s: f64,
    /// The part of the time of requests without a usual cost.
    unknown_part_s: f64,
}

impl BackendCores {
    /// The cores that the operator stated, or else an estimate; `None` if the backend was never saturated.
    pub(super) fn new(
        stated: Option<f64>,
        sample: &[SampledRequest],
        profile: &InFlightProfile,
        is_end_logged: bool,
    ) -> Option<Self> {
        let observed = observe(sample, profile, is_end_logged);
        let cores = match stated {
            Some(cores) => cores,
            None => estimate(&observed)?,
        };
        let is_crowded = |request: &&Observed| request.crowd >= (cores * INFLATION_MIN).max(CROWD_MIN);
        let crowded: Vec<_> = observed.iter().filter(is_crowded).collect();
        let usual = usual_costs(&observed, cores);
        let (factors, other_factor) = (factors(cores, &crowded, &usual), other_factor(cores, &crowded, &usual));
        Some(Self { cores, factors, other_factor })
    }

    /// The correction of the share of a request of this route.
    pub(super) fn route_factor(&self, route: u64) -> f64 {
        self.factors.get(&route).copied().unwrap_or(self.other_factor)
    }
}

/// The estimated number of cores; `None` if the backend was never saturated.
fn estimate(observed: &[Observed]) -> Option<f64> {
    // Requests overlap by chance also in calm times, which depends on the number of cores.
    let mut cores = f64::INFINITY;
    for _ in 0..=REFINEMENTS {
        cores = estimate_with(observed, &usual_costs(observed, cores))?;
    }
    Some(cores)
}

/// The cores that served the requests of a saturated backend, given the usual cost of each route.
fn estimate_with(observed: &[Observed], usual: &HashMap<u64, f64>) -> Option<f64> {
    // By the logarithm of the number in flight, because a backend is saturated only from some number on.
    let mut bins = [Sum::default(); 32];
    for request in observed.iter().filter(|request| request.crowd >= CROWD_MIN) {
        bins[(request.crowd.log2() as usize).min(31)].add(request, usual);
    }
    let is_saturated = |bin: &&Sum| {
        bin.requests >= SATURATED_REQUESTS_MIN && bin.duration_s >= bin.usual_s * INFLATION_MIN && bin.part_s > 0.0
    };
    let saturated = || bins.iter().filter(is_saturated);
    let usual_s: f64 = saturated().map(|bin| bin.usual_s).sum();
    let part_s: f64 = saturated().map(|bin| bin.part_s).sum();
    let unknown_part_s: f64 = saturated().map(|bin| bin.unknown_part_s).sum();
    let is_lower_bound = unknown_part_s > (part_s + unknown_part_s) * UNKNOWN_PART_MAX;
    let cores_min = if is_lower_bound { LOWER_BOUND_CORES_MIN } else { 0.0 };
    let cores = usual_s / part_s;
    (cores.is_finite() && cores.max(cores_min) >= CORES_MIN).then_some(cores.max(cores_min))
}

impl Sum {
    /// Adds a request. If its usual cost is unknown, only its part counts.
    fn add(&mut self, request: &Observed, usual: &HashMap<u64, f64>) {
        let Some(usual_s) = usual.get(&request.route) else {
            self.unknown_part_s += request.part_s;
            return;
        };
        self.requests += 1;
        self.duration_s += request.duration_s;
        self.usual_s += usual_s;
        self.part_s += request.part_s;
    }
}

/// The requests of the sample with their surroundings, from the profile of requests in flight.
fn observe(sample: &[SampledRequest], profile: &InFlightProfile, is_end_logged: bool) -> Vec<Observed> {
    let crowd = profile.integral(|in_flight| in_flight);
    let part = profile.integral(|in_flight| 1.0 / in_flight.max(1.0));
    let slot_s = profile.slot_width().as_nanos() as f64 / 1e9;
    let observe = |request: &SampledRequest| {
        let (start, end) = stay(request.at, request.duration, is_end_logged);
        let duration_s = request.duration.as_nanos() as f64 / 1e9;
        let crowd = crowd.between(start, end) / duration_s;
        // A slot has the mean over its time, of which the request fills a part.
        let others = (crowd - (duration_s / slot_s).min(1.0)).max(0.0);
        Observed { route: request.route, duration_s, crowd, others, part_s: part.between(start, end) }
    };
    sample.iter().filter(|request| !request.duration.is_zero()).map(observe).collect()
}

/// The mean cost of each route: its duration with few others in flight, less the time for which it still shared
/// `cores`.
fn usual_costs(observed: &[Observed], cores: f64) -> HashMap<u64, f64> {
    let calm = calm_crowd(observed);
    let mut sums = HashMap::<u64, (usize, f64)>::new();
    for request in observed.iter().filter(|request| request.crowd <= calm) {
        let sum = sums.entry(request.route).or_default();
        *sum = (sum.0 + 1, sum.1 + request.duration_s / overlap(request.others, cores));
    }
    sums.retain(|_, (requests, _)| *requests >= ROUTE_REQUESTS_MIN);
    sums.into_iter().map(|(route, (requests, cost_s))| (route, cost_s / requests as f64)).collect()
}

/// The factor by which requests that arrive at random prolong each other. On one core it is one plus the mean number of
/// others; several cores are rarely all in use.
fn overlap(others: f64, cores: f64) -> f64 {
    // With more in flight it is not known how many of them the cores can serve at once.
    if cores.is_finite() && others <= CALM { 1.0 + (others / cores).powf(cores) } else { 1.0 }
}

/// The number in flight up to which requests are taken for undisturbed.
fn calm_crowd(observed: &[Observed]) -> f64 {
    if observed.iter().filter(|request| request.crowd <= CALM).count() >= CALM_REQUESTS_MIN {
        return CALM;
    }
    let mut crowds: Vec<_> = observed.iter().map(|request| request.crowd).collect();
    crowds.sort_by(f64::total_cmp);
    let index = (crowds.len() / 20).max(CALM_REQUESTS_MIN).min(crowds.len().saturating_sub(1));
    crowds.get(index).map_or(CALM, |crowd| crowd.max(CALM))
}

/// Corrections for routes that were seen both calm and crowded.
fn factors(cores: f64, crowded: &[&Observed], usual: &HashMap<u64, f64>) -> HashMap<u64, f64> {
    let mut sums = HashMap::<u64, Sum>::new();
    for request in crowded {
        sums.entry(request.route).or_default().add(request, usual);
    }
    sums.retain(|_, sum| sum.requests >= ROUTE_REQUESTS_MIN);
    let factor = |(route, sum): (u64, Sum)| {
        let factor = sum.usual_s / (cores * sum.part_s);
        factor.is_finite().then(|| (route, factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX)))
    };
    sums.into_iter().filter_map(factor).collect()
}

/// The correction for all other routes: the work of a saturated backend, less that of the requests with a usual cost,
/// was done for the requests without one.
fn other_factor(cores: f64, crowded: &[&Observed], usual: &HashMap<u64, f64>) -> f64 {
    let mut sum = Sum::default();
    crowded.iter().for_each(|request| sum.add(request, usual));
    let work_s = cores * (sum.part_s + sum.unknown_part_s);
    let factor = (work_s - sum.usual_s) / (cores * sum.unknown_part_s);
    if factor.is_finite() { factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX) } else { 1.0 }
}

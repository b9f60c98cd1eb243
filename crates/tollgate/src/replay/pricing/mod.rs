//! The cost of recorded requests, in CPU time of the backend.
//!
//! A log has durations. The duration of a request on a busy backend includes the time that it waited for others: with
//! sixteen requests on one core, each takes sixteen times its cost, and the victims of a crawler look like crawlers. A
//! gate therefore charges each request its share of the cores, `min(1, cores / in flight)`. A replay does the same. One
//! pass over the recording ([`Survey`]) counts the requests in flight at every moment and estimates the cores of the
//! backend. Then every request is charged its share of the time that it took.
//!
//! On a backend that serves requests one after the other, a cheap request waits as long as an expensive one. Shares are
//! therefore multiplied by a factor of the route ([`backend_cores`]). No cost exceeds the duration.

mod backend_cores;
mod cumulative;
mod in_flight_profile;
mod rough_estimate;
mod survey;

use std::sync::LazyLock;

use serde::Serialize;
use tollgate_core::class::Class;
use tollgate_core::time::{Moment, Span};
use tollgate_wire::log;

pub(super) use rough_estimate::rough_estimate;
pub(super) use survey::Survey;

use super::key_name::key_hash;
use super::recorded_request::RecordedRequest;
use backend_cores::BackendCores;
use cumulative::Cumulative;

/// The source of the costs of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CostSource {
    /// Measured by a gate, or stated by a trace.
    Measured,
    /// Recorded durations: the backend was never short of cores.
    Durations,
    /// Recorded durations, divided among the requests in flight.
    #[serde(rename = "in-flight-shares")]
    Shares,
    /// Guessed from method, path and size (`--estimate`), because the recording has neither costs nor durations.
    RoughEstimate,
    /// Unknown: the recording has neither costs nor durations, and `--estimate` is not given.
    #[default]
    None,
}

/// The source of the costs, for the summary.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct PricingSummary {
    pub(super) source: CostSource,
    /// The cores of the backend, if they are known.
    pub(super) cores: Option<f64>,
    /// Whether the cores were estimated from the recording.
    pub(super) cores_estimated: bool,
    /// The sum of the recorded durations, if the costs are derived from them.
    pub(super) recorded_ms: u64,
    /// The time for which more requests were in flight than the backend has cores.
    pub(super) saturated_ms: u64,
}

/// Prices recorded requests.
pub(super) struct Pricing {
    pub(super) summary: PricingSummary,
    shares: Option<Shares>,
}

/// The share of a core that each request in flight had, over time.
struct Shares {
    /// Whether the logged time is the end of a request; otherwise it is the start.
    is_end_logged: bool,
    /// Core time of each request while there were enough cores for all requests in flight: one core.
    unsaturated: Cumulative,
    /// Core time of each request while there were not enough: its share of the cores.
    saturated: Cumulative,
    backend: BackendCores,
}

impl Pricing {
    /// Without shares: a measured cost or a duration is the cost. `source` decides on requests that have neither.
    pub(super) fn as_recorded(source: CostSource) -> Self {
        Self { summary: PricingSummary { source, ..PricingSummary::default() }, shares: None }
    }

    /// The cost of a request, or `None` if it is unknown.
    #[inline]
    pub(super) fn cost(&self, request: &RecordedRequest<'_>) -> Option<Span> {
        let line = request.line;
        match (self.summary.source, line.cost) {
            (CostSource::RoughEstimate, None) if !line.is_measured => Some(rough_estimate(line)),
            (_, Some(duration)) if !line.is_measured => Some(self.share(request, duration)),
            (_, cost) => cost,
        }
    }

    /// The cost of a request that took this long: its share of the cores during that time.
    fn share(&self, request: &RecordedRequest<'_>, duration: Span) -> Span {
        if is_upgrade(request.line) {
            return Span::ZERO;
        }
        let Some(shares) = &self.shares else {
            return duration;
        };
        let (start, end) = stay(request.line.at, duration, shares.is_end_logged);
        let saturated_core_s = shares.saturated.between(start, end);
        if saturated_core_s <= 0.0 {
            return duration;
        }
        let factor = shares.backend.route_factor(route(request));
        let cost_s = shares.unsaturated.between(start, end) + saturated_core_s * factor;
        Span::from_nanos((cost_s * 1e9) as u64).min(duration)
    }
}

/// The hash of a request's route: its path without identifiers. It is 0 without a path.
fn route(request: &RecordedRequest<'_>) -> u64 {
    static PATH: LazyLock<Class> = LazyLock::new(|| Class::parse("path").expect("a known class"));
    key_hash(&PATH, request).unwrap_or_default()
}

/// The start and the end of a request with the logged time `at`, which is its end or its start.
fn stay(at: Moment, duration: Span, is_end_logged: bool) -> (Moment, Moment) {
    if is_end_logged { (at.before(duration), at) } else { (at, at + duration) }
}

/// Whether the connection was used for something else than HTTP afterwards. Its duration is not work of the backend.
fn is_upgrade(line: &log::Request<'_>) -> bool {
    line.status == Some(101)
}

//! The outcomes of a run.

use crate::world::{MS, SEC};
use tollgate_core::queue::Refusal;

/// The outcome of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Its place in the order of arrival.
    pub(crate) id: usize,
    /// When it arrived.
    pub(crate) at: u64,
    pub(crate) cpu_ns: u64,
    /// `None` if the client has got no answer.
    pub(crate) latency_ms: Option<f64>,
    /// When it went to the backend.
    pub(crate) started: Option<u64>,
    /// When it was refused, and how.
    pub(crate) refusal: Option<(u64, Refusal)>,
}

pub(crate) struct Results {
    /// By source.
    pub(crate) outcomes: Vec<Vec<Outcome>>,
    /// The most CPU time of requests that were at the backends at once, by source.
    pub(crate) in_flight_ns_max: Vec<u64>,
    /// For every second: busy cores, the in-flight limit, and the cores in thousandths that the first queue has found.
    pub(crate) busy: Vec<f64>,
    pub(crate) limit: Vec<f64>,
    pub(crate) cores: Vec<u32>,
}

impl Results {
    pub(crate) fn new(sources: usize) -> Self {
        let outcomes = vec![vec![]; sources];
        Self { outcomes, in_flight_ns_max: vec![0; sources], busy: vec![], limit: vec![], cores: vec![] }
    }

    /// Outcomes of requests that arrived in this stretch of milliseconds.
    pub(crate) fn during(
        &self,
        sources: &[usize],
        from_ms: u64,
        until_ms: u64,
    ) -> impl Iterator<Item = &Outcome> + use<'_> {
        let outcomes: Vec<_> = sources.iter().flat_map(|source| &self.outcomes[*source]).collect();
        outcomes.into_iter().filter(move |outcome| (from_ms * MS..until_ms * MS).contains(&outcome.at))
    }

    /// The part of requests that were answered; 1 if there were none.
    pub(crate) fn served(&self, sources: &[usize], from_ms: u64, until_ms: u64) -> f64 {
        let all = self.during(sources, from_ms, until_ms).count();
        let answered = self.during(sources, from_ms, until_ms).filter(|outcome| outcome.latency_ms.is_some()).count();
        if all == 0 { 1.0 } else { answered as f64 / all as f64 }
    }

    /// [`quantile`] of these results alone.
    pub(crate) fn quantile(&self, sources: &[usize], q: f64, from_ms: u64, until_ms: u64) -> f64 {
        quantile(core::slice::from_ref(self), sources, q, from_ms, until_ms)
    }

    /// Answers that were given in this stretch of milliseconds.
    pub(crate) fn answered(&self, sources: &[usize], from_ms: u64, until_ms: u64) -> usize {
        let stretch = (from_ms * MS) as f64..(until_ms * MS) as f64;
        let outcomes = sources.iter().flat_map(|source| &self.outcomes[*source]);
        let ends = outcomes.filter_map(|outcome| Some(outcome.at as f64 + outcome.latency_ms? * MS as f64));
        ends.filter(|end| stretch.contains(end)).count()
    }

    pub(crate) fn refused(&self, source: usize) -> usize {
        self.outcomes[source].iter().filter(|outcome| outcome.refusal.is_some()).count()
    }

    /// CPU time per second of a source's requests that were answered in this stretch of seconds.
    pub(crate) fn cpu_rate(&self, source: usize, from_s: u64, until_s: u64) -> f64 {
        let stretch = (from_s * SEC) as f64..(until_s * SEC) as f64;
        let ends = self.outcomes[source]
            .iter()
            .filter_map(|outcome| Some((outcome.at as f64 + outcome.latency_ms? * MS as f64, outcome.cpu_ns)));
        let total: u64 = ends.filter(|(end, _)| stretch.contains(end)).map(|(_, cpu)| cpu).sum();
        total as f64 / SEC as f64 / (until_s - from_s) as f64
    }

    /// Cores busy on average.
    pub(crate) fn busy(&self, from_s: u64, until_s: u64) -> f64 {
        let seconds = &self.busy[from_s as usize..until_s as usize];
        seconds.iter().sum::<f64>() / seconds.len() as f64
    }
}

/// The latency in milliseconds that this part of the requests stays within; no answer counts as five seconds.
pub(crate) fn quantile(results: &[Results], sources: &[usize], q: f64, from_ms: u64, until_ms: u64) -> f64 {
    let outcomes = results.iter().flat_map(|results| results.during(sources, from_ms, until_ms));
    let mut all: Vec<_> = outcomes.map(|outcome| outcome.latency_ms.unwrap_or(5000.0)).collect();
    all.sort_by(f64::total_cmp);
    all.get(((all.len() as f64 * q) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

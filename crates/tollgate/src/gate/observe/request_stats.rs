//! Statistics of all requests for metrics and the console: costs, waits and response times. They are written when a
//! request is forwarded or refused, and when the backend has finished with it. Decisions do not depend on them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::histogram::Histogram;

use super::refusal_history::RefusalHistory;
use super::spenders::{Spender, Spenders};
use crate::watch::Feed;
use tollgate_core::decision::Act;

/// The statistics of a gate, shared by all its threads.
pub(crate) struct RequestStats {
    /// The clock of all moments of this module.
    pub(crate) clock: Clock,
    /// The feed of refusals for the watch.
    pub(crate) feed: Arc<Feed>,
    /// Recent refusals of each client.
    pub(crate) refusals: Arc<RefusalHistory>,
    /// The use of the backend by client.
    pub(crate) spenders: Spenders,
    /// Waits of requests before they were forwarded.
    pub(crate) waits: Histogram,
    /// Costs of requests.
    pub(crate) tolls: Histogram,
    /// Response times, waits included.
    pub(crate) answers: Histogram,
    /// Response times of the backend.
    pub(crate) backend: Histogram,
}

/// The statistics of a request that was forwarded and is not settled yet.
pub(crate) struct PendingStats {
    stats: Arc<RequestStats>,
    spender: Spender,
    /// The wait of the request before it was forwarded.
    pub(crate) wait: Span,
    /// When the request was forwarded.
    went: Moment,
    /// The place in the request's trace that gets the cost too, in nanoseconds; none without a trace.
    pub(crate) trace_toll_ns: Option<Arc<AtomicU64>>,
}

impl RequestStats {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            feed: Arc::default(),
            refusals: Arc::default(),
            spenders: Spenders::default(),
            waits: Histogram::default(),
            tolls: Histogram::default(),
            answers: Histogram::default(),
            backend: Histogram::default(),
        })
    }

    /// Counts a request of a client that arrived at `since` and is forwarded now.
    pub(crate) fn admitted(self: &Arc<Self>, client: IpAddr, agent: &[u8], since: Moment) -> PendingStats {
        let went = self.clock.now();
        let wait = went.since(since);
        self.waits.count(wait);
        let spender = self.spenders.admitted(client, agent);
        PendingStats { stats: self.clone(), spender, wait, went, trace_toll_ns: None }
    }
}

impl PendingStats {
    /// Adds a request that was settled at `now`, with the acts on it, those that observe mode has prevented included.
    pub(crate) fn settle(self, toll: Span, acts: [Option<Act>; 2], now: Moment) {
        let Self { stats, spender, wait, went, trace_toll_ns } = self;
        if let Some(trace_toll_ns) = trace_toll_ns {
            trace_toll_ns.store(toll.as_nanos(), Ordering::Relaxed);
        }
        stats.tolls.count(toll);
        let took = now.since(went);
        stats.backend.count(took);
        stats.answers.count(wait + took);
        stats.spenders.served(spender, toll, wait, acts);
    }
}

//! Statistics of all requests: costs, waits and response times. They are written when a request is forwarded or
//! refused, and when it ends. Decisions do not depend on them.

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

/// The statistics of all workers.
pub(crate) struct RequestStats {
    /// The clock of all moments of this module.
    pub(crate) clock: Clock,
    /// The feed of refusals for the watch.
    pub(crate) feed: Arc<Feed>,
    /// Recent refusals of each client.
    pub(crate) refusals: Arc<RefusalHistory>,
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

/// A request that was forwarded and has not ended.
pub(crate) struct PendingStats {
    stats: Arc<RequestStats>,
    spender: Spender,
    /// The wait of the request before it was forwarded.
    pub(crate) wait: Span,
    went: Moment,
    /// A second place for the cost, in nanoseconds.
    pub(crate) told: Option<Arc<AtomicU64>>,
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

    /// Counts a request of a client that came at `since` and goes to the backend now.
    pub(crate) fn admitted(self: &Arc<Self>, client: IpAddr, agent: &[u8], since: Moment) -> PendingStats {
        let went = self.clock.now();
        let wait = went.since(since);
        self.waits.count(wait);
        let spender = self.spenders.admitted(client, agent);
        PendingStats { stats: self.clone(), spender, wait, went, told: None }
    }
}

impl PendingStats {
    /// Adds a request that finished at `now`. `would`: the act of a gate or rule that only observes.
    pub(crate) fn settle(self, toll: Span, would: Option<Act>, now: Moment) {
        let Self { stats, spender, wait, went, told } = self;
        if let Some(told) = told {
            told.store(toll.as_nanos(), Ordering::Relaxed);
        }
        stats.tolls.count(toll);
        let took = now.since(went);
        stats.backend.count(took);
        stats.answers.count(wait + took);
        stats.spenders.served(spender, toll, wait, would);
    }
}

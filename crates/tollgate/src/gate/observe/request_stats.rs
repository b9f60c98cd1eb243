//! What a gate lets be seen of each request: who spends, who is refused, how long it all takes.
//!
//! A request is looked at when it comes and when it ends, and what is seen is left in maps and counters that others read. Nothing here decides.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use super::engagement::Act;
use super::histogram::Histogram;
use super::spenders::{Spender, Spenders};
use crate::watch::Feed;

/// Whether callers are seen. They are not in a gate that is built to be compared with (`bench/watch`).
pub(crate) const SEES: bool = !cfg!(feature = "blind");

/// What all workers leave for others to see.
pub(crate) struct RequestStats {
    clock: Clock,
    feed: Arc<Feed>,
    pub(crate) spenders: Spenders,
    /// How long requests were held and waited before they went to the backend.
    pub(crate) waits: Histogram,
    /// What requests have cost.
    pub(crate) tolls: Histogram,
    /// How long answers took, all in all.
    pub(crate) answers: Histogram,
    /// How long the backend took.
    pub(crate) backend: Histogram,
}

/// A request that went to the backend; what it comes to is seen when this is settled.
pub(crate) struct PendingStats {
    stats: Arc<RequestStats>,
    spender: Option<Spender>,
    wait: Span,
    went: Moment,
    /// Where else what it costs is left.
    told: Option<Arc<AtomicU64>>,
}

impl RequestStats {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            feed: Arc::default(),
            spenders: Spenders::new(),
            waits: Histogram::new(),
            tolls: Histogram::new(),
            answers: Histogram::new(),
            backend: Histogram::new(),
        })
    }

    /// The clock that moments are of.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where refusals are left for the watch.
    pub(crate) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Counts a refused request of a client.
    pub(crate) fn refused<'a>(&self, client: IpAddr, agent: impl FnOnce() -> &'a [u8], now: Moment) {
        if SEES {
            self.spenders.refused(client, agent, now);
        }
    }

    /// Counts a request of a client that came at `since` and goes to the backend now.
    pub(crate) fn admitted(self: &Arc<Self>, client: IpAddr, agent: &[u8], since: Moment) -> PendingStats {
        let went = self.clock.now();
        let wait = went.since(since);
        self.waits.count(wait);
        let spender = SEES.then(|| self.spenders.admitted(client, agent));
        PendingStats { stats: self.clone(), spender, wait, went, told: None }
    }
}

impl PendingStats {
    /// The time for which the request was held before it went to the backend.
    pub(crate) fn wait(&self) -> Span {
        self.wait
    }

    /// What it costs is left there as well, in nanoseconds.
    pub(crate) fn tell(&mut self, told: Arc<AtomicU64>) {
        self.told = Some(told);
    }

    /// The backend is done with it. `would` is what a gate or rule that only observes would have done to it.
    pub(crate) fn settle(self, toll: Span, would: Option<Act>) {
        let Self { stats, spender, wait, went, told } = self;
        if let Some(told) = told {
            told.store(toll.as_nanos(), Ordering::Relaxed);
        }
        stats.tolls.count(toll);
        let took = stats.clock.now().since(went);
        stats.backend.count(took);
        stats.answers.count(wait + took);
        if let Some(spender) = spender {
            stats.spenders.served(spender, toll, wait, would);
        }
    }
}

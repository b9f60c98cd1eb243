//! What a gate lets be seen of each request: who spends, who is refused, how long it all takes.
//!
//! A request is looked at when it comes and when it ends, and what is seen is left in maps and counters that others read. Nothing here decides.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use super::engagement::Act;
use super::histogram::Histogram;
use super::spenders::{Spender, Spenders};
use crate::gate::decide::identify::RequestView;
use crate::watch::Feed;

/// Whether callers are seen. They are not in a gate that is built to be compared with (`bench/watch`).
pub(crate) const SEES: bool = !cfg!(feature = "blind");

/// What all workers leave for others to see.
pub(crate) struct Sight {
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
pub(crate) struct Account {
    sight: Arc<Sight>,
    spender: Option<Spender>,
    wait: Span,
    went: Moment,
    /// Where else what it costs is left.
    told: Option<Arc<AtomicU64>>,
}

impl Sight {
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

    /// A request was refused. By whom, the watch hears from the log of engagements.
    pub(crate) fn refused(&self, request: &RequestView<'_>, now: Moment) {
        self.refused_client(request.client, || agent_of(request), now);
    }

    /// A request of a client was refused.
    pub(crate) fn refused_client<'a>(&self, client: IpAddr, agent: impl FnOnce() -> &'a [u8], now: Moment) {
        if SEES {
            self.spenders.refused(client, agent, now);
        }
    }

    /// A request that came at `since` may go to the backend.
    pub(crate) fn admitted(self: &Arc<Self>, request: &RequestView<'_>, since: Moment) -> Account {
        self.admitted_client(request.client, agent_of(request), since)
    }

    /// A request of a client that came at `since` may go to the backend.
    pub(crate) fn admitted_client(self: &Arc<Self>, client: IpAddr, agent: &[u8], since: Moment) -> Account {
        let went = self.clock.now();
        let wait = went.since(since);
        self.waits.count(wait);
        let spender = SEES.then(|| self.spenders.admitted(client, agent));
        Account { sight: self.clone(), spender, wait, went, told: None }
    }
}

/// What the request's client calls itself.
fn agent_of<'a>(request: &'a RequestView<'_>) -> &'a [u8] {
    request.header("user-agent").unwrap_or_default()
}

impl Account {
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
        let Self { sight, spender, wait, went, told } = self;
        if let Some(told) = told {
            told.store(toll.as_nanos(), Ordering::Relaxed);
        }
        sight.tolls.count(toll);
        let took = sight.clock.now().since(went);
        sight.backend.count(took);
        sight.answers.count(wait + took);
        if let Some(spender) = spender {
            sight.spenders.served(spender, toll, wait, would);
        }
    }
}

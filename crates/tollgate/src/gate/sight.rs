//! What a gate lets be seen of each request: who spends, who is refused, how long it all takes.
//!
//! A request is looked at when it comes and when it ends, and what is seen is left in maps and counters that others read. Nothing here decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use super::account_name::AccountName;
use super::histogram::Histogram;
use super::identify::RequestView;
use super::refusal::Refusal;
use super::spenders::{End, Spender, Spenders};
use crate::watch::Feed;

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

/// A request that has come.
pub(crate) struct Visitor {
    spender: Spender,
    since: Moment,
}

/// A request that went to the backend; what it comes to is seen when this is settled.
pub(crate) struct Account {
    sight: Arc<Sight>,
    spender: Spender,
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

    /// A request has come.
    pub(crate) fn arrive(&self, request: &RequestView<'_>) -> Visitor {
        let agent = request.header("user-agent").unwrap_or_default();
        Visitor { spender: self.spenders.arrive(request.client, agent), since: self.clock.now() }
    }

    /// It was refused: by a rule, or because its client had too much waiting.
    pub(crate) fn refused(&self, visitor: &Visitor, request: &RequestView<'_>, refusal: &Refusal) {
        self.spenders.leave(visitor.spender, End::Refused);
        let Some((rule, face)) = refusal.by.as_ref().and_then(|(rules, decision)| rules.both(decision)) else {
            return self.feed.refused("ip/32", visitor.spender.address().to_string().as_bytes());
        };
        let mut key = AccountName::default();
        rule.class.write_key(request, &mut key);
        self.feed.refused(&face.class, key.as_bytes());
    }

    /// It may go to the backend.
    pub(crate) fn admitted(self: &Arc<Self>, visitor: &Visitor) -> Account {
        let went = self.clock.now();
        let wait = went.since(visitor.since);
        self.waits.count(wait);
        Account { sight: self.clone(), spender: visitor.spender, wait, went, told: None }
    }
}

impl Account {
    /// What it costs is left there as well, in nanoseconds.
    pub(super) fn tell(&mut self, told: Arc<AtomicU64>) {
        self.told = Some(told);
    }

    /// The backend is done with it.
    pub(crate) fn settle(self, toll: Span) {
        let Self { sight, spender, wait, went, told } = self;
        if let Some(told) = told {
            told.store(toll.as_nanos(), Ordering::Relaxed);
        }
        sight.tolls.count(toll);
        let took = sight.clock.now().since(went);
        sight.backend.count(took);
        sight.answers.count(wait + took);
        sight.spenders.leave(spender, End::Served { toll, wait });
    }
}

//! The state that the doors of one thread use for their responses.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use tollgate_core::time::Span;
use tollgate_gatekeeper::call_limit::CallLimitTable;
use tollgate_gatekeeper::cell::CellTable;

use super::grpc::QuotaRegistry;
use super::metrics::{Count, DoorCounters};
use super::tickets::{TicketId, Tickets};
use crate::gate::{Decider, DoorTicket};
use crate::http_date::HttpDate;
use crate::settings::ServedLimits;
use crate::token::Token;

/// The limits of doors that are not rules of the settings, shared by all threads.
#[derive(Clone)]
pub(super) struct DoorLimits {
    /// Limits of `CL.THROTTLE`.
    pub(super) cells: Arc<CellTable>,
    /// Limits that come with Envoy's descriptors.
    pub(super) overrides: Arc<CallLimitTable>,
    /// Limits in the format of envoyproxy/ratelimit.
    pub(super) served: Arc<ArcSwap<ServedLimits>>,
    /// The streams of Envoy's quota service.
    pub(super) quotas: Arc<QuotaRegistry>,
}

/// The state of one thread, and references to the state of all threads.
pub(super) struct Station {
    pub(super) decider: Decider,
    index: usize,
    tickets: Arc<Tickets>,
    ticket_deadline: Span,
    limits: DoorLimits,
    counters: Arc<DoorCounters>,
    token: Arc<ArcSwapOption<Token>>,
    date: HttpDate,
}

impl Station {
    pub(super) fn new(
        decider: Decider,
        index: usize,
        (tickets, ticket_deadline): (Arc<Tickets>, Span),
        limits: DoorLimits,
        counters: Arc<DoorCounters>,
        token: Arc<ArcSwapOption<Token>>,
    ) -> Rc<Self> {
        Rc::new(Self { decider, index, tickets, ticket_deadline, limits, counters, token, date: HttpDate::new() })
    }

    /// Whether clients need a token.
    pub(super) fn asks_for_token(&self) -> bool {
        self.token.load().is_some()
    }

    /// The token, if this is it.
    pub(super) fn token_of(&self, sent: &[u8]) -> Option<Arc<Token>> {
        self.token.load_full().filter(|token| token.is(sent))
    }

    /// Whether a client that has sent `token` earlier is still authorized.
    pub(super) fn still_lets_in(&self, token: Option<&Arc<Token>>) -> bool {
        let is_same = |now: &Arc<Token>| token.is_some_and(|token| Arc::ptr_eq(token, now));
        self.token.load().as_ref().is_none_or(is_same)
    }

    /// Whether a client with this token is authorized.
    pub(super) fn lets_in(&self, sent: Option<&[u8]>) -> bool {
        self.token.load().as_ref().is_none_or(|token| sent.is_some_and(|sent| token.is(sent)))
    }

    /// The state of the keys of `CL.THROTTLE`.
    pub(super) fn cells(&self) -> &CellTable {
        &self.limits.cells
    }

    /// The limits that come with Envoy's descriptors.
    pub(super) fn overrides(&self) -> &CallLimitTable {
        &self.limits.overrides
    }

    /// The streams of Envoy's quota service.
    pub(super) fn quota_registry(&self) -> Arc<QuotaRegistry> {
        self.limits.quotas.clone()
    }

    /// The limits in the format of envoyproxy/ratelimit that are in force.
    pub(super) fn served_limits(&self) -> Arc<ServedLimits> {
        self.limits.served.load_full()
    }

    /// Increments a counter of the metrics.
    pub(super) fn count(&self, count: Count) {
        self.counters.count(self.index, count);
    }

    /// Sets the number of open connections in the metrics.
    pub(super) fn connections(&self, now: usize) {
        self.counters.set_connections(self.index, now);
    }

    /// Stores a ticket until it is settled or its deadline passes.
    pub(super) fn keep(&self, ticket: Box<DoorTicket>, is_open: bool, deadline: Option<Span>) -> TicketId {
        let deadline = self.decider.now() + deadline.unwrap_or(self.ticket_deadline);
        let (id, evicted) = self.tickets.keep(self.index, ticket, is_open, deadline);
        if let Some(evicted) = evicted {
            self.count(Count::TicketEvicted);
            self.decider.expire(evicted);
        }
        id
    }

    /// Removes and returns the ticket with this name.
    pub(super) fn take(&self, name: &str) -> Option<Box<DoorTicket>> {
        self.tickets.take(name)
    }

    /// Settles the ticket of a line in an access log. `time` is its cost if `is_measured`, and otherwise its duration.
    /// Returns whether the ticket was kept.
    pub(super) fn settle_logged(&self, name: &str, time: Option<Span>, is_measured: bool) -> bool {
        // Itself included.
        let in_flight = self.tickets.open();
        let Some(ticket) = self.take(name) else { return false };
        let cost = match time {
            Some(cost) if is_measured => Some(cost),
            // The queue has measured a request with a permit itself.
            Some(duration) if !ticket.has_permit() => Some(self.decider.share_of(duration, in_flight)),
            _ => None,
        };
        self.decider.settle(ticket, cost);
        true
    }

    /// Settles the expired tickets of this thread. Must be called several times a second.
    pub(super) fn tick(&self) {
        self.decider.tick();
        self.date.refresh();
        self.tickets.expire(self.index, self.decider.now(), |ticket| {
            self.count(Count::TicketExpired);
            self.decider.expire(ticket);
        });
    }

    /// The date for HTTP, as of the last tick.
    pub(super) fn date(&self) -> Rc<str> {
        self.date.get()
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn unix_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

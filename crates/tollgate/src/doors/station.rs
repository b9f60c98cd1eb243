//! Everything that the doors of one thread need to answer.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use tollgate_core::time::Span;
use tollgate_gatekeeper::call_limit::CallLimitTable;
use tollgate_gatekeeper::cell::CellTable;

use super::grpc::QuotaRegistry;
use super::metrics::{Count, DoorFigures};
use super::tickets::{TicketId, Tickets};
use crate::gate::{Decider, DoorTicket};
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

/// The state of one thread, and what all threads share.
pub(super) struct Station {
    pub(super) decider: Decider,
    index: usize,
    tickets: Arc<Tickets>,
    ticket_deadline: Span,
    limits: DoorLimits,
    figures: Arc<DoorFigures>,
    token: Arc<ArcSwapOption<Token>>,
}

impl Station {
    pub(super) fn new(
        decider: Decider,
        index: usize,
        (tickets, ticket_deadline): (Arc<Tickets>, Span),
        limits: DoorLimits,
        figures: Arc<DoorFigures>,
        token: Arc<ArcSwapOption<Token>>,
    ) -> Rc<Self> {
        Rc::new(Self { decider, index, tickets, ticket_deadline, limits, figures, token })
    }

    /// Whether clients have to show a token.
    pub(super) fn asks_for_token(&self) -> bool {
        self.token.load().is_some()
    }

    /// Whether a client that shows this may ask.
    pub(super) fn lets_in(&self, shown: Option<&[u8]>) -> bool {
        self.token.load().as_ref().is_none_or(|token| shown.is_some_and(|shown| token.is(shown)))
    }

    /// The limits that come with each call.
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

    /// Counts something for metrics.
    pub(super) fn count(&self, count: Count) {
        self.figures.count(self.index, count);
    }

    /// Changes the number of open connections.
    pub(super) fn connections(&self, now: usize) {
        self.figures.set_connections(self.index, now);
    }

    /// Keeps a ticket until it is settled, or until its deadline.
    pub(super) fn keep(&self, ticket: DoorTicket, is_open: bool, deadline: Option<Span>) -> TicketId {
        let deadline = self.decider.now() + deadline.unwrap_or(self.ticket_deadline);
        let (id, evicted) = self.tickets.keep(self.index, ticket, is_open, deadline);
        if let Some(evicted) = evicted {
            self.count(Count::TicketEvicted);
            self.decider.expire(evicted);
        }
        id
    }

    /// The ticket of this name, if it is kept. It is not kept any more.
    pub(super) fn take(&self, name: &str) -> Option<DoorTicket> {
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

    /// Settles the tickets of this thread whose deadline is over. To be called several times a second.
    pub(super) fn tick(&self) {
        self.decider.tick();
        self.tickets.expire(self.index, self.decider.now(), |ticket| {
            self.count(Count::TicketExpired);
            self.decider.expire(ticket);
        });
    }

    /// Milliseconds since 1970.
    pub(super) fn unix_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

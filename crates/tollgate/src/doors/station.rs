//! The state that the doors of one thread use to answer calls: the decider, the token, tickets, limits and counters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

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
use crate::wall_clock;

/// The limits of doors that are not rules of the settings, shared by all threads.
#[derive(Clone)]
pub(super) struct DoorLimits {
    /// The keys of `CL.THROTTLE`, whose limits come with each call.
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
    /// The index of this thread.
    pub(super) index: usize,
    pub(super) tickets: Arc<Tickets>,
    /// The time after which a ticket expires, unless the call sets another one.
    pub(super) ticket_deadline: Span,
    pub(super) limits: DoorLimits,
    pub(super) counters: Arc<DoorCounters>,
    /// The token that clients must send; none if they need none.
    pub(super) token: Arc<ArcSwapOption<Token>>,
    pub(super) date: HttpDate,
}

impl Station {
    /// Whether clients need a token.
    pub(super) fn asks_for_token(&self) -> bool {
        self.token.load().is_some()
    }

    /// The token, if `sent` is it.
    pub(super) fn token_of(&self, sent: &[u8]) -> Option<Arc<Token>> {
        self.token.load_full().filter(|token| token.is(sent))
    }

    /// Whether a client that has sent `token` earlier on its connection is still authorized: the token is unchanged, or
    /// none is required.
    pub(super) fn still_lets_in(&self, token: Option<&Arc<Token>>) -> bool {
        let is_same = |now: &Arc<Token>| token.is_some_and(|token| Arc::ptr_eq(token, now));
        self.token.load().as_ref().is_none_or(is_same)
    }

    /// Whether a client that sends this token is authorized.
    pub(super) fn lets_in(&self, sent: Option<&[u8]>) -> bool {
        self.token.load().as_ref().is_none_or(|token| sent.is_some_and(|sent| token.is(sent)))
    }

    /// Increments a counter of the metrics.
    pub(super) fn count(&self, count: Count) {
        self.counters.threads[self.index].counts.count(count);
    }

    /// Sets the number of open connections in the metrics.
    pub(super) fn set_connections(&self, now: usize) {
        self.counters.threads[self.index].connections.store(now as u64, Ordering::Relaxed);
    }

    /// Stores a ticket until it is settled or its deadline passes. `is_open` is explained in [`super::tickets`]. If
    /// there is no room, the oldest ticket expires.
    pub(super) fn keep(&self, ticket: Box<DoorTicket>, is_open: bool, deadline: Option<Span>) -> TicketId {
        let deadline = self.decider.now() + deadline.unwrap_or(self.ticket_deadline);
        let (id, evicted) = self.tickets.keep(self.index, ticket, is_open, deadline);
        if let Some(evicted) = evicted {
            self.count(Count::TicketEvicted);
            self.decider.expire(evicted);
        }
        id
    }

    /// Settles the ticket of a line in an access log. `time` is its cost if `is_measured`, and otherwise its duration.
    /// Returns whether there is such a ticket.
    pub(super) fn settle_logged(&self, name: &str, time: Option<Span>, is_measured: bool) -> bool {
        // Counted before the ticket is removed, so the request itself is included.
        let in_flight = self.tickets.open();
        let Some(ticket) = self.tickets.take(name) else { return false };
        let cost = match time {
            Some(cost) if is_measured => Some(cost),
            // With a permit, the queue has measured the request itself.
            Some(duration) if ticket.permit.is_none() => Some(self.decider.share_of(duration, in_flight)),
            _ => None,
        };
        self.decider.settle(ticket, cost);
        true
    }

    /// Does the periodic work of this thread: the decider's, the date, and expired tickets. Must be called several
    /// times a second.
    pub(super) fn tick(&self) {
        self.decider.tick();
        self.date.refresh();
        self.tickets.expire(self.index, self.decider.now(), |ticket| {
            self.count(Count::TicketExpired);
            self.decider.expire(ticket);
        });
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn unix_ms() -> u64 {
        wall_clock::now().as_nanos() / 1_000_000
    }
}

/// The token in the value of `Authorization: Bearer TOKEN`.
pub(super) fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

//! A permit: one request in flight at the backend, and the wait for it.
//!
//! | state | event | next |
//! |---|---|---|
//! | running | the upload stalls ([`Permit::starve`]) | starved |
//! | starved | the upload flows again ([`Permit::feed`]) | running |
//! | starved | the backend responds nevertheless ([`Permit::worked_unfed`]) | starved; the stall so far is charged |
//! | running, starved | the backend has finished ([`Permit::leave`]), or the permit is dropped | settled |
//!
//! Events that are not in the table change nothing. A running permit counts as in flight, and its time is charged. A
//! starved permit does not count, because the backend waits for the rest of the request.
//!
//! A client that does not read changes no state: the gate buffers its response, and cannot know whether the backend is
//! blocked or computes the rest.

use std::sync::Arc;

use tollgate_core::queue::{Event, Refusal, RouteKey, Ticket};
use tollgate_core::time::{Moment, Span};

use super::{Queue, Woken, part_of};

/// A request that waits; dropped, it leaves the queue.
pub(super) struct Waiting<'a> {
    pub(super) queue: &'a Queue,
    pub(super) ticket: Ticket,
    pub(super) woken: Woken,
}

impl Waiting<'_> {
    /// Waits for this request's turn, or until it is refused.
    pub(super) async fn turn(&mut self) -> Result<(), Refusal> {
        let hold_max = self.queue.with_core(|core, _| core.settings().hold_max);
        // An estimate may be wrong: a request that was accepted may wait half as long again.
        let patience = Span::from_nanos(hold_max.times(3).as_nanos() / 2);
        let message = match tokio::time::timeout(patience.into(), &mut self.woken).await {
            Ok(message) => message,
            Err(_) => {
                self.queue.update(|state, now| {
                    if let Some(refusal) = state.core.give_up(self.ticket, now) {
                        state.handle(Event::Refuse(self.ticket, refusal), now);
                    }
                });
                // If its turn came in the same instant, that message is there instead of the refusal.
                (&mut self.woken).await
            }
        };
        message.expect("a waiter gets a message before it is removed")
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.queue.update(|state, now| {
            if state.core.leave(self.ticket, now) {
                state.waiters.remove(&self.ticket);
            } else if let Ok(Ok(())) = self.woken.try_recv() {
                state.core.done(self.ticket, Span::ZERO, false, now);
            }
        });
    }
}

/// How the backend's part of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backend sent its whole response.
    Answered,
    /// The backend could not be reached, timed out, or broke off.
    Failed,
    /// The gate stopped reading, because nobody reads the response any more.
    Abandoned,
    /// The client broke off its request, and the backend finished what it had of it.
    CutShort,
    /// The client broke off its request, and the gate cannot tell when the backend finishes.
    Unheard,
}

/// A request in flight. Dropped, it is settled.
pub(crate) struct Permit {
    queue: Arc<Queue>,
    /// None when the cost is charged.
    ticket: Option<Ticket>,
    route: RouteKey,
    began: Moment,
    /// When the upload stalled, if the permit is starved.
    starved_at: Option<Moment>,
    /// How long the upload stalled before it flowed again.
    starved: Span,
    /// Time in which the backend worked although the upload stalled: charged like any work, but not measured well.
    unmeasured: Span,
    /// Whether no price is learned from its time: the backend may have waited for the client to read, or a backend other
    /// than the queue's served the request, such as after a retry. The time is charged all the same.
    is_atypical: bool,
}

impl Permit {
    /// A request that goes to the backend now.
    pub(super) fn new(queue: &Arc<Queue>, ticket: Ticket, route: RouteKey) -> Self {
        Self {
            queue: queue.clone(),
            ticket: Some(ticket),
            route,
            began: queue.clock.now(),
            starved_at: None,
            starved: Span::ZERO,
            unmeasured: Span::ZERO,
            is_atypical: false,
        }
    }

    /// The backend with this queue serves the request.
    pub(crate) fn served_by(&mut self, queue: &Arc<Queue>) {
        self.is_atypical |= !Arc::ptr_eq(&self.queue, queue);
    }

    /// There was no room for the response, so that the backend may have waited for the client.
    pub(crate) fn held_up(&mut self) {
        self.is_atypical = true;
    }

    /// The backend waits for the rest of the request.
    pub(crate) fn starve(&mut self) {
        if let (None, Some(ticket)) = (self.starved_at, self.ticket) {
            self.queue.update(|state, now| {
                self.starved_at = Some(now);
                state.core.pause(ticket, now);
            });
        }
    }

    /// The rest of the request comes.
    pub(crate) fn feed(&mut self) {
        if let (Some(since), Some(ticket)) = (self.starved_at.take(), self.ticket) {
            self.queue.with_core(|core, now| {
                self.starved = self.starved + now.since(since);
                core.resume(ticket, now);
            });
        }
    }

    /// The backend did not wait for the rest of the request: the stall so far is charged as work.
    pub(crate) fn worked_unfed(&mut self) {
        let now = self.queue.clock.now();
        let stall = self.starved_at.map_or(Span::ZERO, |since| now.since(since));
        self.unmeasured = self.unmeasured + self.starved + stall;
        (self.starved, self.starved_at) = (Span::ZERO, self.starved_at.map(|_| now));
    }

    /// The backend has finished. Returns what the request cost: what the backend reports, otherwise what was measured.
    pub(crate) fn leave(mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        self.settle(reported, outcome)
    }

    fn settle(&mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        let Some(ticket) = self.ticket.take() else { return Span::ZERO };
        self.queue.update(|state, now| {
            let starved = self.starved + self.starved_at.map_or(Span::ZERO, |since| now.since(since));
            let (cost, wall) = (state.core.so_far(ticket, now), now.since(self.began).as_nanos());
            // The way to the backend and back is not work. At least a sixteenth of the time is: a round trip that has
            // become shorter must not make requests free.
            let round_trip = state.round_trip.unwrap_or(Span::ZERO).as_nanos();
            let at_backend = wall.saturating_sub(round_trip).max(wall / 16).max(1);
            let measured = part_of(cost, at_backend, wall) + self.unmeasured;
            // Work that was not seen costs no more than requests of this route usually do: a client that withholds the
            // end of its request does not get it free, and one on a slow line pays no more than others.
            let unseen = if outcome == Outcome::Unheard { Span::MAX } else { starved };
            let usual = state.core.price(self.route).mean.as_nanos().saturating_sub(measured.as_nanos());
            let toll = reported.unwrap_or(measured + unseen.min(Span::from_nanos(usual)));
            state.counts.toll_ns = state.counts.toll_ns.wrapping_add(toll.as_nanos());
            // The queue learns a price only from a time that is typical of the route, and measured at its own backend.
            let is_typical = matches!(outcome, Outcome::Answered | Outcome::Abandoned) && !self.is_atypical;
            let is_measured = starved.is_zero() && self.unmeasured.is_zero();
            // If its turn has not come, it would have waited until now.
            state.end_wait(ticket, now);
            state.core.done(ticket, toll, is_typical && is_measured, now);
            toll
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.settle(None, Outcome::Abandoned);
    }
}

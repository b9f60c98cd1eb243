//! A permit: one request in flight at the backend, and the wait for it.
//!
//! A permit runs, is charged and counts as in flight, until the backend has finished. It stops only while the backend
//! waits for the rest of the request:
//!
//! | state | event | next |
//! |---|---|---|
//! | running | the upload stalls ([`Permit::starve`]) | starved |
//! | starved | the upload flows again ([`Permit::feed`]) | running |
//! | any | the backend has finished ([`Permit::leave`]), or the permit is dropped | settled |
//!
//! A client that does not read changes nothing: the gate buffers its response, and cannot know whether the backend is
//! blocked or computes the rest.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_core::queue::{Refusal, RouteKey, Ticket};
use tollgate_core::time::{Moment, Span};

use super::Queue;

/// A request that waits; dropped, it leaves the queue.
pub(super) struct Waiting<'a> {
    pub(super) queue: &'a Queue,
    pub(super) ticket: Ticket,
    pub(super) woken: oneshot::Receiver<Result<Ticket, Refusal>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let now = self.queue.clock.now();
        if state.core.leave(self.ticket, now) {
            state.waiters[self.ticket.slot()] = None;
        } else if let Ok(Ok(ticket)) = self.woken.try_recv() {
            state.settled(ticket, now);
            state.core.done(ticket, Span::ZERO, false, now);
        }
        state.dispatch(now);
        self.queue.note_waiting(&state);
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

impl Outcome {
    /// Whether the time it took says something about requests of its route.
    fn teaches(self) -> bool {
        matches!(self, Self::Answered | Self::Abandoned)
    }
}

/// A request in flight. Dropped, it is settled.
pub(crate) struct Permit {
    queue: Arc<Queue>,
    /// None once it is settled.
    ticket: Option<Ticket>,
    route: RouteKey,
    began: Moment,
    /// Since when the upload stalls, if it does, and for how long it has before.
    starved_since: Option<Moment>,
    starved: Span,
    /// Time in which the backend worked although the upload stalled: charged like any work, but not measured well.
    unmeasured: Span,
    /// Whether another backend serves the request than the queue's own.
    is_elsewhere: bool,
    /// Whether the backend may have waited for the client to read: that is charged, and teaches nothing.
    is_held_up: bool,
}

impl Permit {
    pub(super) fn new(queue: &Arc<Queue>, ticket: Ticket, route: RouteKey, began: Moment) -> Self {
        Self {
            queue: queue.clone(),
            ticket: Some(ticket),
            route,
            began,
            starved_since: None,
            starved: Span::ZERO,
            unmeasured: Span::ZERO,
            is_elsewhere: false,
            is_held_up: false,
        }
    }

    /// The backend with this queue serves the request.
    pub(crate) fn served_by(&mut self, queue: &Arc<Queue>) {
        self.is_elsewhere = !Arc::ptr_eq(&self.queue, queue);
    }

    /// There was no room for the response, so that the backend may have waited for the client.
    pub(crate) fn held_up(&mut self) {
        self.is_held_up = true;
    }

    /// The backend waits for the rest of the request.
    pub(crate) fn starve(&mut self) {
        self.starved_since.get_or_insert_with(|| self.queue.clock.now());
        self.stop();
    }

    /// The rest of the request comes.
    pub(crate) fn feed(&mut self) {
        self.starved = self.starved();
        self.starved_since = None;
        self.run();
    }

    /// The backend did not wait for the rest of the request after all.
    pub(crate) fn worked_unfed(&mut self) {
        self.unmeasured = self.unmeasured + self.starved();
        self.starved = Span::ZERO;
        self.starved_since = self.starved_since.map(|_| self.queue.clock.now());
    }

    /// How long the upload has stalled.
    fn starved(&self) -> Span {
        self.starved_since.map_or(self.starved, |since| self.starved + self.queue.clock.now().since(since))
    }

    fn stop(&self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.queue.state();
        let now = self.queue.clock.now();
        state.core.pause(ticket, now);
        state.dispatch(now);
    }

    fn run(&self) {
        let Some(ticket) = self.ticket else { return };
        self.queue.state().core.resume(ticket, self.queue.clock.now());
    }

    /// The backend has finished. Returns what the request cost: what the backend reports, otherwise what was measured.
    pub(crate) fn leave(mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        self.settle(reported, outcome)
    }

    fn settle(&mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        let Some(ticket) = self.ticket.take() else { return Span::ZERO };
        let starved = self.starved();
        let is_measured = starved.is_zero() && self.unmeasured.is_zero() && !self.is_held_up;
        let teaches = outcome.teaches() && is_measured && !self.is_elsewhere;
        let mut state = self.queue.state();
        let now = self.queue.clock.now();
        let measured = self.queue.without_round_trip(state.core.so_far(ticket, now), now.since(self.began));
        let measured = measured + self.unmeasured;
        // Work that was not seen costs no more than requests of this route usually do: a client that withholds the end
        // of its request does not get it free, and one on a slow line pays no more than others.
        let unseen = if outcome == Outcome::Unheard { Span::MAX } else { starved };
        let usual = state.core.price(self.route).mean.as_nanos().saturating_sub(measured.as_nanos());
        let toll = reported.unwrap_or(measured + unseen.min(Span::from_nanos(usual)));
        state.counts.toll_ns = state.counts.toll_ns.wrapping_add(toll.as_nanos());
        state.settled(ticket, now);
        state.core.done(ticket, toll, teaches, now);
        state.dispatch(now);
        self.queue.note_waiting(&state);
        toll
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.settle(None, Outcome::Abandoned);
    }
}

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
    /// Whether the time it took is typical of its route, so that the queue learns its price from it.
    fn teaches(self) -> bool {
        matches!(self, Self::Answered | Self::Abandoned)
    }
}

/// The state of a permit; the table is at the top of this module.
#[derive(Clone, Copy, Debug)]
enum PermitState {
    /// In flight. Next: starved, settled.
    Running(Ticket),
    /// The upload stalls since this moment. Next: running, settled.
    Starved(Ticket, Moment),
    /// The cost is charged. Final.
    Settled,
}

/// A request in flight. Dropped, it is settled.
pub(crate) struct Permit {
    queue: Arc<Queue>,
    route: RouteKey,
    began: Moment,
    state: PermitState,
    /// How long the upload stalled before it flowed again.
    starved: Span,
    /// Time in which the backend worked although the upload stalled: charged like any work, but not measured well.
    unmeasured: Span,
    /// Whether a backend other than the queue's serves the request, such as after a retry. No price is learned then.
    is_elsewhere: bool,
    /// Whether the backend may have waited for the client to read. That time is charged, but no price is learned.
    is_held_up: bool,
}

impl Permit {
    pub(super) fn new(queue: &Arc<Queue>, ticket: Ticket, route: RouteKey, began: Moment) -> Self {
        Self {
            queue: queue.clone(),
            route,
            began,
            state: PermitState::Running(ticket),
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
        let PermitState::Running(ticket) = self.state else { return };
        let mut state = self.queue.state();
        let now = self.queue.clock.now();
        self.state = PermitState::Starved(ticket, now);
        state.core.pause(ticket, now);
        state.dispatch(now);
    }

    /// The rest of the request comes.
    pub(crate) fn feed(&mut self) {
        let PermitState::Starved(ticket, since) = self.state else { return };
        let now = self.queue.clock.now();
        self.starved = self.starved + now.since(since);
        self.state = PermitState::Running(ticket);
        self.queue.state().core.resume(ticket, now);
    }

    /// The backend did not wait for the rest of the request: the stall so far is charged as work.
    pub(crate) fn worked_unfed(&mut self) {
        let now = self.queue.clock.now();
        self.unmeasured = self.unmeasured + self.starved(now);
        self.starved = Span::ZERO;
        if let PermitState::Starved(_, since) = &mut self.state {
            *since = now;
        }
    }

    /// How long the upload has stalled.
    fn starved(&self, now: Moment) -> Span {
        match self.state {
            PermitState::Starved(_, since) => self.starved + now.since(since),
            PermitState::Running(_) | PermitState::Settled => self.starved,
        }
    }

    /// The backend has finished. Returns what the request cost: what the backend reports, otherwise what was measured.
    pub(crate) fn leave(mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        self.settle(reported, outcome)
    }

    fn settle(&mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        let (PermitState::Running(ticket) | PermitState::Starved(ticket, _)) = self.state else { return Span::ZERO };
        let mut state = self.queue.state();
        let now = self.queue.clock.now();
        let starved = self.starved(now);
        self.state = PermitState::Settled;
        let is_measured = starved.is_zero() && self.unmeasured.is_zero() && !self.is_held_up;
        let teaches = outcome.teaches() && is_measured && !self.is_elsewhere;
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

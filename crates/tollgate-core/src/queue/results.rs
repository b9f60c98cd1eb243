//! The results of the queue: its decision about an arriving request, what later happens to one that waits, and the
//! prediction for one that has not arrived.

use super::Ticket;
use crate::time::Span;

/// The decision about an arriving request. Observe mode does not carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Goes to the backend at once.
    Go(Ticket),
    /// Waits; [`Queue::poll`](super::Queue::poll) returns its event. In observe mode that is when it would have gone, or
    /// that it would have been refused after all, unless the backend finishes it first.
    Wait(Ticket, Standing),
    /// Is refused.
    Refuse(Refusal),
}

/// An event of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Goes to the backend.
    Go(Ticket),
    /// Is refused.
    Refuse(Ticket, Refusal),
}

/// Where a request stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether its client is ahead of its share.
    pub is_ahead: bool,
    /// How many waiting requests compete with it, itself included.
    pub position: u32,
    /// The estimated time until it starts.
    pub wait: Span,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// It would have to wait longer than [`Settings::hold_max`](super::Settings::hold_max).
    WaitTooLong,
    /// There is no room for another waiting request, and its client is furthest ahead of its share.
    Full,
}

/// A request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which bound refused it.
    pub reason: RefusedBy,
    /// Where it stood.
    pub standing: Standing,
    /// When to try again: its estimated wait or, if the room is full, the time until the queue has drained if that is
    /// longer; varied by -5 % to +15 %, and 1 s to 60 s.
    pub retry_after: Span,
}

/// The prediction for a request that arrived now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Where it would stand.
    pub standing: Standing,
    /// The predicted outcome.
    pub fate: Fate,
}

/// The outcome for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It would go at once.
    Go,
    /// It would wait.
    Wait,
    /// It would be refused.
    Refuse(RefusedBy),
}

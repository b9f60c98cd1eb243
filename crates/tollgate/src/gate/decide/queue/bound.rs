//! Why a request waits or is refused, for traces, logs and forecasts: the reason, the value observed, and the value
//! allowed.

use tollgate_core::queue::{Fate, RefusedBy, Standing};
use tollgate_core::time::Span;

use super::Queue;

/// A bound of the queue that holds or refuses a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBound {
    /// `backend-busy`, `wait-too-long` or `queue-full`. The values are a position and the in-flight limit, waits in
    /// milliseconds, or numbers of waiting requests.
    pub(crate) reason: &'static str,
    pub(crate) observed: u64,
    pub(crate) allowed: u64,
}

impl QueueBound {
    /// Why a request waits: its position, and how many may be in flight.
    pub(crate) fn busy(queue: &Queue, standing: Standing) -> Self {
        let (observed, allowed) = (standing.position.into(), queue.status().in_flight_max);
        Self { reason: "backend-busy", observed, allowed }
    }

    /// Which bound of the queue refuses a request: the value that was observed, and the value allowed.
    pub(crate) fn refusing(queue: &Queue, reason: RefusedBy, standing: Standing, hold_max: Span) -> Self {
        let (reason, observed, allowed) = match reason {
            RefusedBy::WaitTooLong => ("wait-too-long", standing.wait.as_millis_ceil(), hold_max.as_millis_ceil()),
            RefusedBy::Full => ("queue-full", queue.status().waiting, queue.waiting_max()),
        };
        Self { reason, observed, allowed }
    }
}

/// The predicted decision of the queue about a request that arrived now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueForecast {
    pub(crate) standing: Standing,
    pub(crate) fate: Fate,
    /// Why it would not go at once.
    pub(crate) bound: Option<QueueBound>,
}

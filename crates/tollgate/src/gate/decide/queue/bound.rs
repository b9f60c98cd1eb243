//! Why a request waits or is refused, for traces, logs and forecasts: the reason, the value observed, and the value
//! allowed.

use tollgate_core::queue::{RefusedBy, Standing};

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
        let allowed = queue.with_core(|core, _| core.limit());
        Self { reason: "backend-busy", observed: standing.position.into(), allowed: allowed.into() }
    }

    /// Which bound of the queue refuses a request: the value that was observed, and the value allowed.
    pub(crate) fn refusing(queue: &Queue, reason: RefusedBy, standing: Standing) -> Self {
        let (reason, observed, allowed) = queue.with_core(|core, _| match reason {
            RefusedBy::WaitTooLong => {
                ("wait-too-long", standing.wait.as_millis_ceil(), core.settings().hold_max.as_millis_ceil())
            }
            RefusedBy::Full => ("queue-full", core.waiting() as u64, core.settings().total as u64),
        });
        Self { reason, observed, allowed }
    }
}

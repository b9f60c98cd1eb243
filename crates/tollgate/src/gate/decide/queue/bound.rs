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
    /// The bound that refuses a request with this standing, or lets it wait (`None`).
    pub(crate) fn new(queue: &Queue, standing: Standing, refused_by: Option<RefusedBy>) -> Self {
        let (reason, observed, allowed) = queue.with_core(|core, _| match refused_by {
            None => ("backend-busy", standing.position.into(), core.limit().into()),
            Some(RefusedBy::WaitTooLong) => {
                ("wait-too-long", standing.wait.as_millis_ceil(), core.settings().hold_max.as_millis_ceil())
            }
            Some(RefusedBy::Full) => ("queue-full", core.waiting() as u64, core.settings().total as u64),
        });
        Self { reason, observed, allowed }
    }
}

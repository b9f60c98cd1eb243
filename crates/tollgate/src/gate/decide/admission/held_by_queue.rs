//! Logs the wait of a request in the queue.

use std::net::IpAddr;

use tollgate_core::time::Moment;

use super::Admission;
use crate::gate::decide::queue::Queue;
use crate::gate::observe::engagement::{Act, Engagement, QueueAct};
use crate::gate::observe::engagement_log::EngagementLog;

/// A request that waits in the queue. Dropping it logs how long the request waited.
pub(super) struct HeldByQueue<'a> {
    pub(super) admission: &'a Admission,
    pub(super) queue: &'a Queue,
    pub(super) client: IpAddr,
    pub(super) log: &'a EngagementLog,
    pub(super) since: Moment,
    pub(super) position: u32,
}

impl Drop for HeldByQueue<'_> {
    fn drop(&mut self) {
        let Self { admission, queue, client, log, since, position } = self;
        let (now, allowed) = (admission.now(), queue.status().in_flight_max);
        let (act, reason, backoff) = (Act::Hold, "backend-busy", now.since(*since));
        let done = QueueAct { act, reason, observed: u64::from(*position), allowed, backoff };
        log.tell(&Engagement::by_queue(*client, admission.load.band(), done), now);
    }
}

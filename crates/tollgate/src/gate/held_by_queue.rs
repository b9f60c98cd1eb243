//! A request that waits in the queue, as the log shows it.

use std::net::IpAddr;

use tollgate_core::time::Moment;

use super::admission::Admission;
use super::engagement::{Act, Engagement, QueueAct};
use super::engagement_log::EngagementLog;
use super::queue::Queue;

/// A request that waits in the queue. Dropped, it logs how long it waited.
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
        log.tell(&Engagement::by_queue(*client, admission.load().band(), done), now);
    }
}

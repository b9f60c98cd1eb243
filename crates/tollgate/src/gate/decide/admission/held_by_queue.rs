//! A request that waits in the queue, as the log shows it.

use std::net::IpAddr;

use tollgate_core::time::Moment;

use super::admission::Admission;
use super::queue::Queue;
use crate::gate::observe::engagement::{Act, Engagement, QueueAct};
use crate::gate::observe::engagement_log::EngagementLog;

/// A request that waits in the queue. Dropped, it logs how long it waited.
pub(crate) struct HeldByQueue<'a> {
    pub(crate) admission: &'a Admission,
    pub(crate) queue: &'a Queue,
    pub(crate) client: IpAddr,
    pub(crate) log: &'a EngagementLog,
    pub(crate) since: Moment,
    pub(crate) position: u32,
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

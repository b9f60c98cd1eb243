//! Estimates the clocks of the store's servers, to give each call a deadline on the clock of the server that runs it.
//!
//! A call may run long after it was sent: the server was paused, or packets were lost. By then its caller has decided
//! by itself, and the connection on which the charge would be reported may be closed. A call whose caller waits
//! therefore carries a deadline on the server's clock, once that is known. After it the script decides nothing.
//! Otherwise a client could be refused for several requests that were given up seconds ago and are charged at once.
//!
//! Every reply contains the server's time. The difference to the local clock is taken at the time of sending, so the
//! estimate is never behind the server's clock, and a deadline is never early, unless the server's clock was set
//! forward. Then the calls until the next reply may be too late, and that reply corrects the estimate.

use core::sync::atomic::AtomicI64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use tokio::time::Instant;
use tollgate_core::time::Moment;

use super::cluster_parts::{ClusterParts, PARTS};
use super::slot::slot_of;

/// The time from the moment at which the caller stops waiting to the deadline on the server. It is not zero, so that a
/// small correction of the server's clock does not make calls late whose callers still wait. A call that runs in this
/// time does no harm: its charge is refunded when the reply arrives.
const GRACE: Duration = Duration::from_millis(100);
/// The offset of a part that has not replied yet.
const UNKNOWN: i64 = i64::MIN;
const NANOS_PER_MICRO: u64 = 1_000;

/// The clocks of the parts of a store: of one server, or of ranges of a Cluster's hash slots, which may be on different
/// machines.
#[derive(Debug)]
pub(super) struct StoreClocks {
    /// The start of the local clock.
    origin: Instant,
    /// The time of a part minus the time since `origin`, in microseconds; [`UNKNOWN`] before the first reply.
    offsets: Box<[AtomicI64]>,
}

impl StoreClocks {
    /// No clock is known yet.
    pub(super) fn new(is_cluster: bool) -> Self {
        let parts = if is_cluster { PARTS } else { 1 };
        Self { origin: Instant::now(), offsets: (0..parts).map(|_| AtomicI64::new(UNKNOWN)).collect() }
    }

    /// Learns from the reply to a call about `slot` that was sent at `sent` and ran at `ran` on the store's clock.
    pub(super) fn learn(&self, slot: &[u8], sent: Instant, ran: Moment) {
        let ran_us = i64::try_from(ran.as_nanos() / NANOS_PER_MICRO).unwrap_or(i64::MAX);
        self.offset(slot).store(ran_us.saturating_sub(self.micros(sent)), Relaxed);
    }

    /// The deadline of a call about `slot` whose caller waits until `expires`, in microseconds on the store's clock;
    /// `None` if that clock is unknown. The connection is closed if the reply does not arrive before `closed`, so the
    /// deadline is not later.
    pub(super) fn deadline_us(&self, slot: &[u8], expires: Instant, closed: Instant) -> Option<u64> {
        let offset = Some(self.offset(slot).load(Relaxed)).filter(|offset| *offset != UNKNOWN)?;
        let deadline = (expires + GRACE).min(closed);
        u64::try_from(self.micros(deadline).saturating_add(offset)).ok()
    }

    /// The offset of the part that has `slot`.
    fn offset(&self, slot: &[u8]) -> &AtomicI64 {
        let part = if self.offsets.len() > 1 { ClusterParts::part_of(slot_of(slot)) } else { 0 };
        &self.offsets[part]
    }

    /// The time from the origin to `instant`, in microseconds.
    fn micros(&self, instant: Instant) -> i64 {
        i64::try_from(instant.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_is_on_the_clock_of_the_part_that_has_the_slot() {
        let (clocks, sent) = (StoreClocks::new(true), Instant::now());
        let closed = sent + SECOND;
        assert_eq!(clocks.deadline_us(b"one", closed, closed), None, "no reply yet");
        clocks.learn(b"one", sent, Moment::from_millis(50_000));
        clocks.learn(b"two", sent, Moment::from_millis(70_000));
        let at = |slot: &[u8], after_ms: u64| {
            clocks.deadline_us(slot, sent + Duration::from_millis(after_ms), closed).unwrap().div_ceil(1_000)
        };
        assert_eq!((at(b"one", 50), at(b"two", 50)), (50_150, 70_150));
        assert_eq!(at(b"one", 990), 51_000, "the reply would come too late");
    }

    #[test]
    fn the_last_reply_decides_what_time_it_is() {
        let (clocks, sent) = (StoreClocks::new(false), Instant::now());
        for ran_ms in [50_000, 9_000_000, 1_000] {
            clocks.learn(b"slot", sent, Moment::from_millis(ran_ms));
            let deadline_us = clocks.deadline_us(b"slot", sent, sent + SECOND).unwrap();
            assert_eq!(deadline_us.div_ceil(1_000), ran_ms + 100);
        }
    }
}

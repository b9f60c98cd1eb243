//! A queue of events from decisions to the link (the connections to masters), which never blocks.
//!
//! A report must cost a request almost nothing, with or without a master. A decision therefore writes its
//! event into a ring of fixed size. If the link is too slow, the oldest event is dropped and counted, because
//! newer ones are more useful.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use tollgate_core::time::{Moment, Span};

use crate::hash::KeyHash;
use crate::identifier::{Identifier, Name};

/// The capacity in events: 82 ms at a hundred thousand requests per second.
const EVENTS_MAX: usize = 8192;

/// The queue of events. Clones share it.
#[derive(Clone)]
pub struct Relay(pub(crate) Arc<RelayInner>);

pub(crate) struct RelayInner {
    /// The names of the reported rules; events refer to them by index.
    rules: Box<[String]>,
    events: ArrayQueue<RelayEvent>,
    /// Unused buffers for long identifiers.
    spare: ArrayQueue<Box<Name>>,
    /// Whether the link sleeps, so that the next event must call `wake`.
    is_asleep: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
    /// See [`Relay::dropped`].
    dropped: AtomicU64,
    /// The number of requests with an empty key.
    pub(crate) unreported: AtomicU64,
    /// One of this many refusals is reported; `None` reports none.
    refusal_sampling_interval: Option<u32>,
    /// The number of refusals so far, which wraps around.
    refusals: AtomicU32,
    /// Whether reports contain a description of the request, for the master's log.
    pub(crate) log_info: bool,
}

/// An event of one rule.
#[derive(Debug)]
pub(crate) struct RelayEvent {
    /// The index of the relay's rule.
    pub(crate) rule: u16,
    pub(crate) kind: EventKind,
}

/// An event. `hash` and `identifier` are those of the request's key, and `clear` is the time at which all of its debt
/// is paid back, which is zero if it is not known.
#[derive(Debug)]
pub(crate) enum EventKind {
    /// A request was admitted or held.
    Usage {
        hash: KeyHash,
        identifier: Identifier,
        /// The number of requests that were charged.
        count: u64,
        held_until: Option<Moment>,
        clear: Moment,
        /// A description of the request, if reports include it.
        note: Option<Box<[u8]>>,
    },
    /// A request has ended with this CPU time.
    Settlement { hash: KeyHash, cpu: Span, clear: Moment },
    /// A request was refunded, because it was not forwarded; `count` is returned.
    Return { hash: KeyHash, count: u64, clear: Moment },
    /// A request was refused.
    Refusal { identifier: Identifier },
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Relay").field("rules", &self.0.rules).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay for `rules`. `wake` is called for the first event after [`sleep`](Self::sleep).
    pub(crate) fn new(
        rules: Box<[String]>,
        refusal_sampling_interval: Option<u32>,
        log_info: bool,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(RelayInner {
            rules,
            events: ArrayQueue::new(EVENTS_MAX),
            spare: ArrayQueue::new(EVENTS_MAX),
            is_asleep: AtomicBool::new(false),
            wake: Box::new(wake),
            dropped: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            refusal_sampling_interval,
            refusals: AtomicU32::new(0),
            log_info,
        }))
    }

    /// The index of the rule with this name, if it is reported.
    pub(crate) fn place(&self, rule: &str) -> Option<u16> {
        self.0.rules.iter().zip(0..).find(|(name, _)| *name == rule).map(|(_, place)| place)
    }

    pub(crate) fn push(&self, event: RelayEvent) {
        if let Some(oldest) = self.0.events.force_push(event) {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            self.put_back(oldest);
        }
        if self.0.is_asleep.load(Ordering::SeqCst) && self.0.is_asleep.swap(false, Ordering::SeqCst) {
            (self.0.wake)();
        }
    }

    /// A buffer for a long identifier.
    pub(crate) fn spare(&self) -> Box<Name> {
        self.0.spare.pop().unwrap_or_default()
    }

    /// Returns a buffer for a long identifier.
    pub(crate) fn put_back_name(&self, name: Box<Name>) {
        // Surplus buffers are freed.
        let _ = self.0.spare.push(name);
    }

    /// Recycles the buffer of a processed event, so that steady traffic does not allocate.
    pub(crate) fn put_back(&self, event: RelayEvent) {
        if let EventKind::Usage { identifier: Identifier::Long(name), .. }
        | EventKind::Refusal { identifier: Identifier::Long(name) } = event.kind
        {
            self.put_back_name(name);
        }
    }

    /// Whether this refusal is sampled.
    pub(crate) fn samples_refusal(&self) -> bool {
        let Some(sampled) = self.0.refusal_sampling_interval else { return false };
        self.0.refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(sampled)
    }

    /// The next event.
    pub(crate) fn next(&self) -> Option<RelayEvent> {
        self.0.events.pop()
    }

    /// Requests a wake-up for the next event. Returns whether an event is already there.
    pub(crate) fn sleep(&self) -> bool {
        self.0.is_asleep.store(true, Ordering::SeqCst);
        // A push between the empty check and this store saw `is_asleep == false`, so check again.
        !self.0.events.is_empty()
    }

    /// The number of events that were dropped for newer ones.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// The number of requests that were not reported because their key is empty. Only this process limits
    /// them.
    pub fn unreported(&self) -> u64 {
        self.0.unreported.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn refusal() -> RelayEvent {
        RelayEvent { rule: 0, kind: EventKind::Refusal { identifier: Identifier::Long(Box::default()) } }
    }

    #[test]
    fn fault_40_the_oldest_event_is_dropped_and_counted() {
        let relay = Relay::new(Box::new(["r".to_string()]), None, false, || {});
        for number in 0..EVENTS_MAX + 5 {
            relay.push(RelayEvent { rule: number as u16, ..refusal() });
        }
        assert_eq!(relay.dropped(), 5);
        let left: Vec<_> = std::iter::from_fn(|| relay.next()).map(|event| usize::from(event.rule)).collect();
        assert!(left.into_iter().eq(5..EVENTS_MAX + 5));
        assert_eq!(relay.0.spare.len(), 5, "the buffers of dropped events are used again");
    }

    #[test]
    fn a_sleeping_link_is_woken_once_for_any_number_of_events() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let relay = Relay::new(Box::new([]), None, false, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        relay.push(refusal());
        assert!(relay.sleep(), "what came before is not slept over");
        while relay.next().is_some() {}
        assert!(!relay.sleep());
        (0..10).for_each(|_| relay.push(refusal()));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_event_is_small() {
        // Inline space for the longest name would quadruple the size, and every decision would transfer it
        // between cores.
        assert!(size_of::<RelayEvent>() <= 88, "{}", size_of::<RelayEvent>());
    }

    #[test]
    fn refusals_are_sampled() {
        let relay = Relay::new(Box::new([]), Some(10), false, || {});
        assert_eq!((0..100).filter(|_| relay.samples_refusal()).count(), 10);
        assert!(!Relay::new(Box::new([]), None, false, || {}).samples_refusal());
    }
}

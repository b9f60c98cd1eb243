//! Selects the requests that are traced (sampled), and queues their traces for [`super::export`].

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tollgate_wire::trace_context::TraceParent;

use super::request_trace::RequestTrace;

/// The maximum number of queued traces.
const QUEUE_MAX: usize = 2048;

/// Samples requests and queues their traces.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// A request is sampled if a random number is below this value.
    below: u64,
    queue: Sender<Box<RequestTrace>>,
    /// The number of traces that did not fit into the queue.
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// A tracer that samples this many of a million requests, and the other end of the queue of their traces.
    pub(super) fn new(millionths: u32, dropped: Arc<AtomicU64>) -> (Arc<Self>, Receiver<Box<RequestTrace>>) {
        let (queue, finished) = channel(QUEUE_MAX);
        let below = (u128::from(u64::MAX) * u128::from(millionths) / 1_000_000) as u64;
        (Arc::new(Self { below, queue, dropped }), finished)
    }

    /// Starts a trace if the request is sampled. `parent` is the value of its `traceparent` header, if that is trusted:
    /// it decides about sampling. Otherwise a random number does.
    pub(crate) fn begin(
        self: &Arc<Self>,
        parent: Option<&[u8]>,
        method: &[u8],
        target: &[u8],
        client: IpAddr,
    ) -> Option<Trace> {
        let parent = parent.and_then(TraceParent::read);
        if !parent.map_or_else(|| fastrand::u64(..) < self.below, |parent| parent.sampled) {
            return None;
        }
        let mut ids = [0; 32];
        getrandom::fill(&mut ids).ok()?;
        let request_trace = Box::new(RequestTrace::new(parent, ids, method, target, client));
        Some(Trace { tracer: self.clone(), request_trace: Some(request_trace) })
    }
}

/// A sampled request. Dropping it queues its trace.
#[derive(Debug)]
pub(crate) struct Trace {
    tracer: Arc<Tracer>,
    request_trace: Option<Box<RequestTrace>>,
}

impl Deref for Trace {
    type Target = RequestTrace;

    fn deref(&self) -> &RequestTrace {
        self.request_trace.as_ref().expect("present until drop")
    }
}

impl DerefMut for Trace {
    fn deref_mut(&mut self) -> &mut RequestTrace {
        self.request_trace.as_mut().expect("present until drop")
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let Some(mut request_trace) = self.request_trace.take() else { return };
        request_trace.duration = request_trace.since.elapsed();
        if self.tracer.queue.try_send(request_trace).is_err() {
            self.tracer.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const SAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const NOT_SAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    #[test]
    fn the_configured_share_of_requests_is_sampled() {
        let (tracer, _finished) = Tracer::new(100_000, Arc::default());
        let chosen = (0..20_000).filter(|_| tracer.begin(None, b"GET", b"/", CLIENT).is_some()).count();
        assert!((1500..2500).contains(&chosen), "{chosen} of 20,000");
        let (all, _finished) = Tracer::new(1_000_000, Arc::default());
        assert!((0..1000).all(|_| all.begin(None, b"GET", b"/", CLIENT).is_some()));
    }

    #[test]
    fn a_trusted_traceparent_decides_about_sampling() {
        let (tracer, _finished) = Tracer::new(1, Arc::default());
        let trace = tracer.begin(Some(SAMPLED), b"GET", b"/", CLIENT).unwrap();
        assert_eq!(trace.traceparent().trace[..2], [0x4b, 0xf9]);
        assert_ne!(trace.traceparent().span, TraceParent::read(SAMPLED).unwrap().span);
        let (all, _finished) = Tracer::new(1_000_000, Arc::default());
        assert!(all.begin(Some(NOT_SAMPLED), b"GET", b"/", CLIENT).is_none());
        assert!(all.begin(Some(b"nonsense"), b"GET", b"/", CLIENT).is_some());
    }

    #[test]
    fn traces_that_do_not_fit_the_queue_are_counted() {
        let dropped: Arc<AtomicU64> = Arc::default();
        let (tracer, mut finished) = Tracer::new(1_000_000, dropped.clone());
        for _ in 0..QUEUE_MAX + 7 {
            drop(tracer.begin(None, b"GET", b"/page?secret", CLIENT));
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 7);
        let first = finished.try_recv().unwrap().spans();
        assert_eq!((first[0].name.as_str(), first[0].parent), ("GET", None));
        assert!(!format!("{first:?}").contains("secret"));
    }
}

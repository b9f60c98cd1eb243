//! The OpenTelemetry trace of one sampled request: arrival, decision, wait, cost and response.
//!
//! It has up to three spans: the whole request, its wait at the gate, and its time at the backend. The code that serves
//! the request fills it in; [`super::export`] sends the spans when the request has ended.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::time::Moment;
use tollgate_wire::otlp::{Span, SpanKind, Value};
use tollgate_wire::trace_context::TraceParent;

use crate::wall_clock;

/// The maximum length of a path in a span, in bytes.
const PATH_BYTES_MAX: usize = 256;
/// Shorter waits have no span.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The trace of one sampled request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    trace_id: [u8; 16],
    /// The ID of the span for the whole request.
    own: [u8; 8],
    /// The ID of the span for the time at the backend.
    backend_span: [u8; 8],
    /// The ID of the span of a trusted proxy in front of the gate.
    parent_span: Option<[u8; 8]>,
    /// The time of the arrival, by the wall clock and by the monotonic clock.
    arrived: Moment,
    pub(super) since: Instant,
    /// The time from the arrival until the request was forwarded; none if it was not.
    wait: Option<Duration>,
    method: String,
    path: String,
    client: IpAddr,
    pub(crate) decided: Decided,
    /// The cost of the request, stored when it is settled.
    toll_ns: Arc<AtomicU64>,
    /// The status of the response, if there was one.
    status: Option<u16>,
    /// The time from the arrival to the end, set at the end.
    pub(super) duration: Duration,
}

/// The decision about a request, as in the attributes of its span.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) rule: Option<String>,
}

impl RequestTrace {
    /// Starts a trace for a request that has just arrived, as a child of `parent`. `ids` are random: 16 bytes for a new
    /// trace ID and 8 for each of two spans. The query of `target` is not recorded, because it may contain secrets.
    pub(super) fn new(
        parent: Option<TraceParent>,
        ids: [u8; 32],
        method: &[u8],
        target: &[u8],
        client: IpAddr,
    ) -> Self {
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let id = |from: usize| std::array::from_fn(|index| ids[from + index]);
        Self {
            trace_id: parent.map_or_else(|| std::array::from_fn(|index| ids[index]), |parent| parent.trace),
            own: id(16),
            backend_span: id(24),
            parent_span: parent.map(|parent| parent.span),
            arrived: wall_clock::now(),
            since: Instant::now(),
            wait: None,
            method: String::from_utf8_lossy(method).into_owned(),
            path: String::from_utf8_lossy(&path[..path.len().min(PATH_BYTES_MAX)]).into_owned(),
            client,
            decided: Decided { decision: "none", reason: "client-left", rule: None },
            toll_ns: Arc::default(),
            status: None,
            duration: Duration::ZERO,
        }
    }

    /// The `traceparent` for the backend, so that its spans belong to the same trace.
    pub(crate) fn traceparent(&self) -> TraceParent {
        TraceParent { trace: self.trace_id, span: self.backend_span, sampled: true }
    }

    /// Records that the request is forwarded now. Returns the place where its cost in nanoseconds is to be stored
    /// later.
    pub(crate) fn forwarded(&mut self) -> Arc<AtomicU64> {
        self.wait = Some(self.since.elapsed());
        self.toll_ns.clone()
    }

    /// Records the status of the response; 0 if there was none.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = (status > 0).then_some(status);
    }

    /// The spans of the finished request.
    pub(super) fn spans(&self) -> Vec<Span> {
        let at = |after: Duration| self.arrived.as_nanos().saturating_add(after.as_nanos() as u64);
        let span = |id, parent, name: &str, kind, from, to| Span {
            trace: self.trace_id,
            id,
            parent,
            name: name.to_owned(),
            kind,
            start_ns: at(from),
            end_ns: at(to),
            attributes: Vec::new(),
            failed: false,
        };
        let mut whole = span(self.own, self.parent_span, &self.method, SpanKind::Server, Duration::ZERO, self.duration);
        whole.attributes = self.attributes();
        let has_failed = self.status.is_some_and(|status| status >= 500);
        whole.failed = has_failed;
        let mut spans = vec![whole];
        let waited = self.wait.unwrap_or(self.duration);
        if waited >= WAIT_MIN {
            // The ID of the gate's span with its last bit flipped: no other span of this trace has it.
            let mut id = self.own;
            id[7] ^= 1;
            spans.push(span(id, Some(self.own), "wait", SpanKind::Internal, Duration::ZERO, waited));
        }
        if let Some(wait) = self.wait {
            let mut backend = span(self.backend_span, Some(self.own), "backend", SpanKind::Client, wait, self.duration);
            backend.attributes.push(("http.request.method", Value::Text(self.method.clone())));
            backend.failed = has_failed;
            spans.push(backend);
        }
        spans
    }

    fn attributes(&self) -> Vec<(&'static str, Value)> {
        let text = |text: &str| Value::Text(text.to_owned());
        let mut attributes = vec![
            ("http.request.method", text(&self.method)),
            ("url.path", text(&self.path)),
            ("client.address", Value::Text(self.client.to_string())),
            ("tollgate.decision", text(self.decided.decision)),
            ("tollgate.reason", text(self.decided.reason)),
        ];
        attributes.extend(self.decided.rule.as_ref().map(|rule| ("tollgate.rule", text(rule))));
        attributes.extend(self.status.map(|status| ("http.response.status_code", Value::Whole(status.into()))));
        if let Some(wait) = self.wait {
            let toll_ns = self.toll_ns.load(Ordering::Relaxed);
            attributes.push(("tollgate.wait_ms", Value::Number(wait.as_nanos() as f64 / 1e6)));
            attributes.push(("tollgate.toll_ms", Value::Number(toll_ns as f64 / 1e6)));
        }
        attributes
    }
}

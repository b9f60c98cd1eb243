//! Records the steps of a request in its OpenTelemetry trace. An exchange calls these functions. For requests that are
//! not sampled there is no [`Trace`], and each function returns at once.

use tollgate_wire::http1::RequestHead;

use super::worker::Worker;
use crate::gate::decide::admission::Ticket;
use crate::gate::decide::identify::{ConnectionPeer, RequestView};
use crate::gate::decide::refusal::Refusal;
use crate::gate::observe::request_stats::PendingStats;
use crate::telemetry::{Decided, Trace};

/// The header field of W3C Trace Context, with the ids of the trace and of the parent span.
const TRACEPARENT: &[u8] = b"traceparent";

/// Starts the trace of a request, if it is sampled. Only the `traceparent` of a trusted proxy is used: it can force
/// sampling, and any other client could have all its requests sampled.
pub(crate) fn begin(worker: &Worker, peer: &ConnectionPeer, request: &RequestView<'_>) -> Option<Trace> {
    let tracer = worker.shared.tracer.as_ref()?;
    let head = request.head;
    let parent = if peer.trust().is_some() { head.fields.find(TRACEPARENT) } else { None };
    tracer.begin(parent, &head.method, head.target(), request.client)
}

/// Records that a rule or the queue refused the request.
pub(crate) fn refused(trace: &mut Option<Trace>, refusal: &Refusal) {
    let Some(trace) = trace else { return };
    let rule = refusal.rule().map(|rule| rule.name.clone());
    trace.decided = Decided { decision: "refuse", reason: refusal.cause.as_str(), rule };
}

/// Records that the request is not forwarded, for a reason other than a rule or the queue.
pub(crate) fn undecided(trace: &mut Option<Trace>, reason: &'static str) {
    let Some(trace) = trace else { return };
    trace.decided = Decided { decision: "none", reason, rule: None };
}

/// Records that the request is forwarded, and replaces its `traceparent`, so that spans of the backend belong to the
/// trace. `account` gets a place in the trace, in which it stores the cost of the request when it is settled.
pub(crate) fn forwarded(
    trace: &mut Option<Trace>,
    ticket: &Ticket,
    account: &mut PendingStats,
    request: &mut RequestHead,
) {
    let Some(trace) = trace else { return };
    let (decision, rule) = ticket.decided();
    trace.decided = Decided { decision: decision.verdict.as_str(), reason: decision.reason.as_str(), rule };
    account.trace_toll_ns = Some(trace.forwarded());
    request.fields.retain(|field| field.name_bytes != TRACEPARENT);
    request.fields.push(TRACEPARENT, &trace.traceparent().write());
}

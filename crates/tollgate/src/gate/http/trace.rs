//! The trace of a request, if it is sampled. For all other requests each function returns at once.

use tollgate_wire::http1::RequestHead;

use super::worker::Worker;
use crate::gate::decide::admission::Ticket;
use crate::gate::decide::identify::{ConnectionPeer, RequestView};
use crate::gate::decide::refusal::Refusal;
use crate::gate::observe::request_stats::PendingStats;
use crate::telemetry::{Decided, Trace};

/// The header field of W3C Trace Context.
const TRACEPARENT: &[u8] = b"traceparent";

/// Starts the trace of a request. Only a trusted proxy may set the parent: any other client could have all its requests
/// sampled.
pub(crate) fn begin(worker: &Worker, peer: &ConnectionPeer, request: &RequestView<'_>) -> Option<Trace> {
    let tracer = worker.shared.tracer.as_ref()?;
    let head = request.head;
    let parent = if peer.trust().is_some() { head.fields.find(TRACEPARENT) } else { None };
    tracer.begin(parent, &head.method, head.target(), request.client)
}

/// Records that the request was refused.
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

/// Records that the request is forwarded, and replaces its `traceparent`.
pub(crate) fn goes(trace: &mut Option<Trace>, ticket: &Ticket, account: &mut PendingStats, request: &mut RequestHead) {
    let Some(trace) = trace else { return };
    let (decision, rule) = ticket.decided();
    trace.decided = Decided { decision: decision.verdict.as_str(), reason: decision.reason.as_str(), rule };
    account.told = Some(trace.goes());
    request.fields.retain(|field| field.name_bytes != TRACEPARENT);
    request.fields.push(TRACEPARENT, &trace.traceparent().write());
}

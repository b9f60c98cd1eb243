//! What a request on its way tells of itself, if it is one of those that are told. For all others each of these is one look at an absent value.

use tollgate_wire::http1::{RequestHead, ResponseHead};

use super::worker::Worker;
use crate::gate::decide::admission::Ticket;
use crate::gate::decide::identify::{Peer, RequestView};
use crate::gate::decide::refusal::Refusal;
use crate::gate::observe::sight::Account;
use crate::telemetry::{Decided, Trace};

/// The field that says which journey a request is a part of.
const TRACEPARENT: &[u8] = b"traceparent";

/// A request has come. Only a trusted proxy is believed about what it is a part of: a stranger could have all of its requests told.
pub(crate) fn begin(worker: &Worker, peer: &Peer, request: &RequestView<'_>) -> Option<Trace> {
    let tracer = worker.shared.tracer.as_ref()?;
    let head = request.head;
    let parent = if peer.trust().is_some() { head.fields.find(TRACEPARENT) } else { None };
    tracer.begin(parent, &head.method, head.target(), request.client)
}

/// It was refused.
pub(crate) fn refused(trace: &mut Option<Trace>, refusal: &Refusal) {
    let Some(trace) = trace else { return };
    let rule = refusal.rule().map(|rule| rule.name.clone());
    trace.decided(Decided { decision: "refuse", reason: refusal.cause.as_str(), rule });
}

/// It goes to the backend, which is told what it is a part of.
pub(crate) fn goes(
    trace: &mut Option<Trace>,
    ticket: &Ticket,
    account: &mut Account,
    (request, response): (&mut RequestHead, &mut ResponseHead),
) {
    let Some(trace) = trace else { return };
    let (decision, rule) = ticket.decided();
    trace.decided(Decided { decision: decision.verdict.as_str(), reason: decision.reason.as_str(), rule });
    account.tell(trace.goes());
    request.fields.retain(|field| field.name_bytes != TRACEPARENT);
    request.fields.push(TRACEPARENT, &trace.traceparent().write());
    // What is in there is of the request before.
    response.clear();
}

/// It is over.
pub(crate) fn over(trace: Option<Trace>, response: &ResponseHead) {
    if let Some(mut trace) = trace {
        trace.answered(response.status);
    }
}

//! Records a request that is refused before any decision, because its HTTP/2 connection has no memory for it: in the
//! counters, the log, the statistics of clients, the access log and the trace, like a request that the queue refuses.

use h2::RecvStream;
use http::Request;
use tollgate_core::time::Span;

use super::access_record::AccessRecord;
use super::h2_head;
use super::halves::Sent;
use super::scratch::Scratch;
use super::trace;
use super::worker::Worker;
use crate::gate::decide::identify::{ConnectionPeer, RequestView, user_agent};
use crate::gate::observe::counters::WorkerCounter;

/// Records a refusal after this wait.
pub(super) fn record(worker: &Worker, peer: &ConnectionPeer, request: &Request<RecvStream>, wait: Span) {
    let (settings, shared) = (worker.settings(), &worker.shared);
    worker.counters.count(WorkerCounter::Unbuffered);
    worker.counters.count(WorkerCounter::Refused);
    let mut scratch = worker.scratch();
    let Scratch { request: head, response, .. } = &mut *scratch;
    let is_readable = h2_head::read_request(request, head, settings.bounds.fields_max).is_ok() && peer.judge(&settings);
    let client = if is_readable { peer.client(head, &settings) } else { peer.address };
    let refusal = shared.admission.refuse_by_memory(client, &worker.engagements);
    response.clear();
    // The client gets no status, but a reset of its stream.
    response.status = refusal.status();
    if is_readable {
        shared.stats.spenders.refused(client, || user_agent(head), shared.stats.clock.now());
        let mut trace = trace::begin(worker, peer, &RequestView::new(client, head));
        trace::refused(&mut trace, &refusal);
        if let Some(mut trace) = trace {
            trace.answered(0);
        }
    }
    if let Some(mut record) = AccessRecord::begin(worker) {
        record.refused(&refusal, wait);
        let sent = Sent { protocol: "HTTP/2.0", has_begun: true, body_bytes: 0 };
        record.write(worker, client, is_readable.then_some(&*head), response, sent);
    }
    worker.keep_scratch(scratch);
}

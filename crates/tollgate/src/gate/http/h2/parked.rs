//! Requests of an HTTP/2 connection that are parked: they wait without a task until the budget of the connection has
//! room for them, before the fair queue knows of them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;

use super::{H2Session, MemoryCharge, serve_one};
use crate::gate::net::timer::{Timer, Way};

/// A request that waits until the budget of its connection has room for it.
pub(super) struct ParkedRequest {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    pub(super) charge: MemoryCharge,
    /// The time of its arrival.
    pub(super) since_ms: u64,
}

/// Serves parked requests for which there is room, the oldest first, each in a task of its own.
pub(super) fn start_parked(parked: &mut VecDeque<ParkedRequest>, session: &Rc<H2Session>) {
    let mut next = 0;
    while let Some(candidate) = parked.get_mut(next) {
        if !candidate.charge.serve() {
            next += 1;
            continue;
        }
        let Some(ParkedRequest { request, respond, charge, .. }) = parked.remove(next) else { return };
        let session = session.clone();
        tokio::task::spawn_local(async move {
            serve_one(request, respond, charge, &session).await;
            session.under_way.set(session.under_way.get() - 1);
        });
    }
}

/// Drops parked requests that their client has reset, and refuses those that have waited too long. The task is woken
/// when the next one has.
pub(super) fn prune_parked(
    parked: &mut VecDeque<ParkedRequest>,
    session: &H2Session,
    idle: &Timer,
    cx: &mut Context<'_>,
) {
    let wait_max = Duration::from(session.worker.settings().hold.max);
    let waited = |since_ms: u64| Duration::from_millis(idle.now_ms().saturating_sub(since_ms));
    parked.retain_mut(|ParkedRequest { request, respond, since_ms, .. }| {
        if respond.poll_reset(cx).is_ready() {
            session.resets.set(session.resets.get() + 1);
        } else if waited(*since_ms) > wait_max {
            session.refuse(request, respond, waited(*since_ms).into());
        } else {
            return true;
        }
        session.under_way.set(session.under_way.get() - 1);
        false
    });
    match parked.front() {
        Some(oldest) => {
            idle.set(Way::Out, wait_max.saturating_sub(waited(oldest.since_ms)));
            let _ = idle.is_over(Way::Out, cx);
        }
        None => idle.clear(Way::Out),
    }
}

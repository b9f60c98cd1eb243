//! The thread of one backend's queue that updates prices, limits and estimates while requests wait.
//!
//! It looks every 5 ms for requests that cost more than their price, and every 50 ms at how busy this machine is, if
//! the backend is on it. Where the machine is hardly busy, no backend computes.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Duration;

use super::Queue;
use crate::gate::decide::kernel::Machine;
use crate::settings::BackendUrl;

/// How often requests in flight are compared with their prices.
const EVERY: Duration = Duration::from_millis(5);
/// While nothing waits, the thread checks this often whether its queue was dropped.
const IDLE: Duration = Duration::from_secs(1);

/// Starts the thread, which ends when the queue is gone. Without it, requests are dispatched all the same when others
/// end.
pub(super) fn start(queue: &Arc<Queue>) -> Option<Thread> {
    let is_local = queue.url.as_ref().is_some_and(is_local);
    let queue = Arc::downgrade(queue);
    let run = move || {
        let mut machine = Machine::new();
        let mut has_waiting = false;
        loop {
            thread::park_timeout(if has_waiting { EVERY } else { IDLE });
            let Some(queue) = queue.upgrade() else { return };
            has_waiting = queue.with_core(|core, _| core.waiting() > 0);
            if has_waiting && is_local && machine.is_due() {
                let busy = machine.busy();
                queue.with_core(|core, _| core.machine_busy(busy));
            }
            queue.update(|state, now| state.core.tick(now));
        }
    };
    let started = thread::Builder::new().name("tollgate-queue".to_owned()).spawn(run).inspect_err(|error| {
        tracing::warn!(%error, "cannot start the queue's thread: estimates are updated less often");
    });
    started.ok().map(|handle| handle.thread().clone())
}

/// Whether a backend is on this machine, as far as its address shows.
fn is_local(backend: &BackendUrl) -> bool {
    backend.host == "localhost" || backend.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_local_if_its_address_is_a_loopback_address() {
        for (backend, is) in [
            ("http://127.0.0.1:80", true),
            ("http://localhost:80", true),
            ("http://[::1]:81", true),
            ("http://192.0.2.1:81", false),
            ("http://site.example", false),
        ] {
            assert_eq!(is_local(&BackendUrl::parse(backend).unwrap()), is, "{backend}");
        }
    }
}

//! The main loop of one worker thread: its listeners, its periodic work, and its end. Each worker has its own sockets
//! and connections.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::listener;
use crate::gate::http::health_check;
use crate::gate::http::worker::{Shared, Worker};
use crate::gate::net::timer::TICK;

/// Time for which idle connections stay open after the gate begins to stop. A client that is just sending a request on
/// one would lose it; it gets a response with `Connection: close` instead.
const IDLE_WHILE_DRAINING: Duration = Duration::from_millis(300);

/// The phase of a running gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It accepts connections.
    Serving,
    /// It accepts no connections and finishes the requests in flight.
    Draining,
    /// It stops now.
    Over,
}

/// Serves connections of these listeners until the gate stops. After [`Phase::Draining`] it accepts no more, and
/// returns when the last connection has closed; after [`Phase::Over`] it returns at once. `index` is the number of the
/// worker; worker 0 also runs the health checks of the backends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    index: usize,
    listeners: Vec<TcpListener>,
    mut phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let worker = Worker::new(shared, index);
    let mut accepting = Vec::new();
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.push(tokio::task::spawn_local(listener::accept(listener, worker.clone())));
    }
    if index == 0 {
        accepting.push(tokio::task::spawn_local(health_check::run(worker.clone())));
    }
    let (mut tick, mut idle_until) = (tokio::time::interval(TICK), Instant::now());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => worker.sweep(),
            changed = phase.changed() => {
                let now = *phase.borrow_and_update();
                if changed.is_err() || now == Phase::Over {
                    return Ok(());
                }
                if now == Phase::Draining {
                    worker.drain();
                    idle_until = Instant::now() + IDLE_WHILE_DRAINING;
                    for accepting in accepting.drain(..) {
                        accepting.abort();
                    }
                }
            }
        }
        if worker.is_draining() {
            if Instant::now() >= idle_until {
                worker.timers.close_idle(usize::MAX);
            }
            if worker.connections.get() == 0 {
                return Ok(());
            }
        }
    }
}

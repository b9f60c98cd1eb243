//! Starting a gate, and stopping it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::admission::Admission;
use super::backend::{Backends, connect};
use super::caps::Caps;
use super::listener;
use super::tally::Tally;
use super::worker::{self, Phase, Shared};
use crate::settings::Gate as Settings;

/// File descriptors that are not for clients: listeners, logs, connections to backends of requests under way.
const DESCRIPTORS_RESERVED: usize = 64;

/// Serves until told to stop.
pub(crate) fn run(settings: Settings) -> io::Result<()> {
    let connections_max = settings.bounds.connections_max.min(connections_possible());
    let workers = settings.workers.max(1);
    let drain = settings.timeouts.drain;
    let mut listeners = Vec::new();
    for _ in 0..workers {
        let bound: io::Result<Vec<_>> = settings.listen.iter().map(|address| listener::bind(*address)).collect();
        listeners.push(bound?);
    }
    let shared = Arc::new(Shared {
        backends: Backends::new(&settings.backends),
        caps: Caps::new(connections_max),
        admission: Arc::new(Admission::default()),
        tallies: (0..workers).map(|_| Arc::new(Tally::default())).collect(),
        backend_tls: connect::tls_config(rustls::RootCertStore::empty()),
        settings: ArcSwap::from_pointee(settings),
    });
    let (phase, watched) = watch::channel(Phase::Serving);
    let threads: io::Result<Vec<_>> = listeners
        .into_iter()
        .enumerate()
        .map(|(index, listeners)| {
            let (shared, watched) = (shared.clone(), watched.clone());
            std::thread::Builder::new()
                .name(format!("gate-{index}"))
                .spawn(move || worker::run(shared, index, listeners, watched))
        })
        .collect();
    let threads = threads?;
    drop(watched);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(until_stopped(phase, drain))?;
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a worker panicked"))??;
    }
    Ok(())
}

async fn until_stopped(phase: watch::Sender<Phase>, drain: Duration) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("draining: finishing requests in flight");
    let _ = phase.send(Phase::Draining);
    tokio::select! {
        () = phase.closed() => {}
        () = tokio::time::sleep(drain) => tracing::warn!("requests were still in flight when the time to drain was over"),
        _ = interrupt.recv() => {}
    }
    let _ = phase.send(Phase::Over);
    Ok(())
}

/// Connections for which there are file descriptors, each with one to a backend.
fn connections_possible() -> usize {
    // The bound on open files is often low only to protect programs that are older than it.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match rustix::process::setrlimit(rustix::process::Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let files = current.map_or(1 << 20, |files| usize::try_from(files).unwrap_or(usize::MAX)).min(1 << 20);
    (files.saturating_sub(DESCRIPTORS_RESERVED) / 2).max(16)
}

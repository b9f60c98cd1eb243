//! The connection of the gate to Redis, the shared store of rules with `state = "redis"`.
//!
//! One thread talks to Redis. The other threads of the gate pass their questions to it, so that questions of all of
//! them are sent together. When nothing uses the store any more, the thread returns the unused leases (the parts of
//! limits that the gate took in advance) and ends.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate_gatekeeper::shared::{Counts, Options, Store, StoreHealth};

use crate::settings::Redis as Settings;

/// The longest wait for connections before the gate starts without them. Connecting to a running server takes
/// milliseconds.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(1);
/// The time in which the thread may return leases at the end.
const FAREWELL_MAX: Duration = Duration::from_millis(1500);

/// The store and the thread that serves it.
pub(crate) struct RedisLink {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    thread: JoinHandle<()>,
}

impl RedisLink {
    /// Starts the thread, and waits up to [`CONNECT_WAIT_MAX`] for its connections, so that Redis decides about the
    /// first request already.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        let address = settings.address()?;
        let Settings { deadline, wait, waiting_max, connections, .. } = *settings;
        let options = Options { deadline, wait, waiting_max, connections };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (opened, opening) = mpsc::channel();
        let thread = std::thread::Builder::new().name("redis".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let store = Store::open(address, options);
                let ended = store.ended();
                tokio::spawn(log_health(Arc::clone(store.health())));
                if tokio::time::timeout(CONNECT_WAIT_MAX, store.connected()).await.is_err() {
                    let trouble = store.health().connect_error();
                    tracing::warn!(trouble, "Redis cannot be reached; the gate starts without it");
                }
                if opened.send(store).is_ok() {
                    ended.await;
                }
            });
        })?;
        let store = opening.recv().map_err(io::Error::other)?;
        Ok(Self { settings: settings.clone(), store, thread })
    }

    /// The URL of the store for display, without user, password and parameters.
    pub(crate) fn name(&self) -> String {
        let (scheme, rest) = self.settings.url.split_once("://").unwrap_or(("", &self.settings.url));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        format!("{scheme}://{}", rest.split('?').next().unwrap_or_default())
    }

    /// Waits until the thread has ended, at most [`FAREWELL_MAX`]. It ends only if nothing else uses the store.
    pub(crate) fn end(self) {
        drop(self.store);
        let deadline = Instant::now() + FAREWELL_MAX;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The interval at which the health of the store is checked for the log.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Logs a warning for each second in which Redis left decisions unanswered, and a line when it answers again.
async fn log_health(health: Arc<StoreHealth>) {
    let mut ticks = tokio::time::interval(LOG_EVERY);
    let mut before = Counts::default();
    let mut has_failed = false;
    loop {
        ticks.tick().await;
        let counts = health.counts();
        let decisions = counts.unanswered() - before.unanswered();
        if decisions > 0 {
            has_failed = true;
            let (late, down, busy) = (counts.late - before.late, counts.down - before.down, counts.busy - before.busy);
            let (failed, foreign, garbled) =
                (counts.failed - before.failed, counts.foreign - before.foreign, counts.garbled - before.garbled);
            let by_redis = counts.answered - before.answered;
            let slot = health.foreign().filter(|_| foreign > 0);
            let (trouble, gone) = (health.connect_error(), health.gone());
            tracing::warn!(
                decisions,
                by_redis,
                late,
                down,
                busy,
                failed,
                foreign,
                garbled,
                slot,
                trouble,
                gone,
                "Redis has not decided; rules do as their `on_timeout` says"
            );
        } else if has_failed && counts.answered > before.answered {
            has_failed = false;
            tracing::info!("Redis decides again");
        }
        before = counts;
    }
}

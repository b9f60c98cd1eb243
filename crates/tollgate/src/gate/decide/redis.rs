//! The shared store, and the thread that talks to it.
//!
//! Workers pass their requests to that thread, so that requests of all workers are sent together. The thread runs as
//! long as anything holds the store, and then returns unused leases.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate_gatekeeper::shared::{Counts, Options, Store, StoreHealth};

use crate::settings::Redis as Settings;

/// The longest wait for connections before the gate serves without them. Connections to a running server take
/// milliseconds.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(1);
/// The time in which the thread may return leases at the end.
const FAREWELL_MAX: Duration = Duration::from_millis(1500);

/// The link to the store.
pub(crate) struct RedisLink {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    thread: JoinHandle<()>,
}

impl RedisLink {
    /// Opens the store of `settings`, and waits up to a second for its connections, so that it decides about the first
    /// request already.
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
                tokio::spawn(tell(Arc::clone(store.health())));
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

    /// The address of the store, without user and password.
    pub(crate) fn name(&self) -> String {
        let (scheme, rest) = self.settings.url.split_once("://").unwrap_or(("", &self.settings.url));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        format!("{scheme}://{}", rest.split('?').next().unwrap_or_default())
    }

    /// Waits until the thread has ended, if nothing else holds the store.
    pub(crate) fn end(self) {
        drop(self.store);
        let deadline = Instant::now() + FAREWELL_MAX;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The interval of the log lines.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Logs once a second while the store does not respond, and when it responds again.
async fn tell(vitals: Arc<StoreHealth>) {
    let mut ticks = tokio::time::interval(TELL_EVERY);
    let mut before = Counts::default();
    let mut is_amiss = false;
    loop {
        ticks.tick().await;
        let counts = vitals.counts();
        let decisions = counts.unanswered() - before.unanswered();
        if decisions > 0 {
            is_amiss = true;
            let (late, down, busy) = (counts.late - before.late, counts.down - before.down, counts.busy - before.busy);
            let (failed, foreign, garbled) =
                (counts.failed - before.failed, counts.foreign - before.foreign, counts.garbled - before.garbled);
            let by_redis = counts.answered - before.answered;
            let slot = vitals.foreign().filter(|_| foreign > 0);
            let (trouble, gone) = (vitals.connect_error(), vitals.gone());
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
        } else if is_amiss && counts.answered > before.answered {
            is_amiss = false;
            tracing::info!("Redis decides again");
        }
        before = counts;
    }
}

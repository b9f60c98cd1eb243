//! The store that gates share, and the thread that talks to it.
//!
//! Workers hand their questions to that thread, so that those of all workers travel together. It lives as long as anybody holds the
//! store, and then says what is left to say: what was taken ahead goes back.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate_gatekeeper::shared::{Counts, Options, Store, StoreHealth};

use crate::settings::Redis as Settings;

/// How long a gate waits for its connections before it serves without them. Connections to a server that is there take milliseconds.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long the thread has for its last words.
const FAREWELL_MAX: Duration = Duration::from_millis(1500);

/// The way to the store.
pub(crate) struct RedisLink {
    settings: Settings,
    store: Store,
    thread: JoinHandle<()>,
}

impl RedisLink {
    /// Opens the store of `settings`, and waits for its connections, so that the store decides about the first request already. If it is down,
    /// no longer than for a second.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        let address = settings.address()?;
        let options = Options {
            deadline: settings.deadline,
            wait: settings.wait,
            waiting_max: settings.waiting_max,
            connections: settings.connections,
        };
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

    /// Whether these settings mean this store, asked in this way.
    pub(crate) fn is_for(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    /// Where the store is, without user and password.
    pub(crate) fn name(&self) -> String {
        let (scheme, rest) = self.settings.url.split_once("://").unwrap_or(("", &self.settings.url));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        format!("{scheme}://{}", rest.split('?').next().unwrap_or_default())
    }

    /// What the names of all slots begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// The store.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until everything has been said, when nobody else holds the store any more.
    pub(crate) fn end(self) {
        drop(self.store);
        let deadline = Instant::now() + FAREWELL_MAX;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// How often the log is told how it goes.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Says in the log that the store does not decide, once a second while that is so, and that it does again.
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

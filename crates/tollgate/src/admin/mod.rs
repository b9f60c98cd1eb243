//! The admin address: an HTTP server for operators, with health checks, metrics, the console (the web interface) and
//! the API that the console uses.
//!
//! It accesses the role of this process (gate, master, or watch alone) through the trait [`MonitoredRole`], and the
//! watch, which records refusals and sets flags, directly. All requests pass the [`guard`] first.

mod api;
mod body;
mod config;
mod connections;
mod events;
mod flags;
mod guard;
mod history;
mod login;
mod monitored_role;
mod paced_stream;
mod page;
mod problem;
mod quota;
mod report_json;
mod script;
mod server;
mod sessions;
mod tokens;
mod watch_access;
mod wrong_tokens;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tollgate_core::time::Moment;

pub(crate) use config::{Config, Reloaded};
pub(crate) use guard::Guard;
pub(crate) use monitored_role::{BoxFuture, CurrentValues, ExplainRequest, KeyRef, MonitoredRole, Totals};
pub(crate) use tokens::{Role, Tokens, token_files};

use events::Events;
use history::History;
use quota::Quota;

use crate::watch::Watch;

/// Default admin address.
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8889));

/// The state of the admin address, as handlers receive it.
type ConsoleState = State<Arc<Console>>;

/// State of the admin address.
pub(crate) struct Console {
    /// Registry of all metrics.
    registry: Registry,
    /// The role of this process.
    monitored: Arc<dyn MonitoredRole>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) guard: Guard,
    events: Events,
    history: Mutex<History>,
    config: Mutex<Config>,
    /// Permits to process reports of refusals, which other programs send.
    reports: Arc<Quota>,
    /// Permits for operations of the watch, which may block.
    watch_permits: Arc<Semaphore>,
    started: Moment,
}

impl Console {
    /// Creates the state of the admin address. `monitored` is the role of this process.
    pub(crate) fn new(
        mut registry: Registry,
        monitored: Arc<dyn MonitoredRole>,
        watch: Arc<Watch>,
        guard: Guard,
        config: Config,
    ) -> Arc<Self> {
        let started = watch.calendar.now();
        let help = "Requests to the admin address with a wrong token";
        registry.register("tollgate_admin_wrong_tokens", help, guard.wrong_tokens.count.clone());
        let (events, history, config) = (Events::default(), Mutex::default(), Mutex::new(config));
        let reports = Quota::new(flags::REPORTS_AT_ONCE_MAX);
        let watch_permits = Arc::new(Semaphore::new(watch_access::OPERATIONS_MAX));
        Arc::new(Self { registry, monitored, watch, guard, events, history, config, reports, watch_permits, started })
    }

    /// Records the outcome of a reload: the new settings, with the names of those that wait for a restart, or the
    /// errors.
    pub(crate) fn reloaded(&self, outcome: Result<(Config, Vec<&'static str>), String>) {
        let at = self.watch.calendar.now();
        let mut config = self.config.lock();
        match outcome {
            Ok((new, waiting)) => *config = config.succeeded_by(new, at, waiting),
            Err(faults) => {
                // Settings that wait for a restart still do.
                let waiting = config.reloaded.take().map_or_else(Vec::new, |last| last.waiting);
                config.reloaded = Some(Reloaded { at, faults: Some(faults), waiting });
            }
        }
    }

    /// All metrics in the text format.
    pub(crate) fn metrics_text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing into a string cannot fail");
        text
    }

    /// Updates the role, the history and the event streams. Call it once per second, on a thread that may block.
    fn tick(&self) {
        self.monitored.tick();
        if let Some(totals) = self.monitored.totals() {
            let now = self.watch.calendar.now();
            self.history.lock().take(totals, now);
        }
        // The status is serialised only if a stream is open.
        if self.events.latest.receiver_count() > 0 {
            self.events.latest.send_replace(api::status_value(self).to_string().into());
        }
    }
}

/// Binds the admin address.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on the admin address {address}: {error}"))
    })?;
    let bound = listener.local_addr()?;
    tracing::info!(address = %bound, console = %console_url(bound), "operators may connect");
    Ok(listener)
}

/// The URL of the console for a browser on this machine.
fn console_url(mut bound: SocketAddr) -> String {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => bound.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => bound.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("http://{bound}/")
}

/// Serves the admin address until the process ends.
pub(crate) async fn serve(listener: TcpListener, console: Arc<Console>) {
    // The watch may block on the disk, so it has a task of its own, and everything else stays current.
    tokio::spawn(every_second(console.clone(), |console| console.watch.tick()));
    tokio::spawn(every_second(console.clone(), Console::tick));
    server::serve(listener, router(console)).await;
}

/// Calls `act` once per second on a blocking thread.
async fn every_second(console: Arc<Console>, act: fn(&Console)) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        seconds.tick().await;
        let console = console.clone();
        let _ = tokio::task::spawn_blocking(move || act(&console)).await;
    }
}

fn router(console: Arc<Console>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/login", get(login::page).post(login::login))
        .route("/logout", post(login::logout))
        .route("/api/v1/status", get(api::status))
        .route("/api/v1/events", get(events::events))
        .route("/api/v1/history", get(api::history))
        .route("/api/v1/buckets", get(api::buckets))
        .route("/api/v1/episodes", get(api::episodes))
        .route("/api/v1/flags", get(flags::flags))
        .route("/api/v1/flags/{account}", delete(flags::clear))
        .route("/api/v1/rejections", post(flags::rejections))
        .route("/api/v1/explain", post(api::explain))
        .route("/api/v1/key", get(api::key))
        .route("/api/v1/key/clear", post(api::clear_key))
        .route("/api/v1/key/exempt", post(api::exempt_key))
        .route("/api/v1/audit", get(api::audit))
        .route("/api/v1/config", get(api::config))
        .route("/api/v1/session", get(api::session))
        .route("/api/v1/openapi.json", get(api::openapi))
        .merge(page::routes())
        .fallback(|| async { problem::AdminProblem::absent("not found") })
        .method_not_allowed_fallback(|| async {
            problem::AdminProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
        })
        .layer(from_fn_with_state(console.clone(), guard::guard))
        .with_state(console)
}

async fn readyz(State(console): ConsoleState) -> impl IntoResponse {
    let ready = console.monitored.is_ready();
    if ready { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn metrics(State(console): ConsoleState) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], console.metrics_text())
}

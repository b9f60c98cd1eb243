//! The address for operators: health, metrics, the console and what it and other programs ask.
//!
//! It looks at whatever role runs beside it through a narrow window ([`Subject`]), and at the watch, which is below all roles. Everything that
//! reaches it passes the [`guard`] first.

mod api;
mod asking;
mod body;
mod config;
mod connections;
mod events;
mod flags;
mod guard;
mod history;
mod login;
mod paced;
mod page;
mod problem;
mod quota;
mod script;
mod server;
mod sessions;
mod subject;
mod tokens;
mod wrong_tokens;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tollgate_core::time::Moment;

pub(crate) use config::{Config, Reloaded};
pub(crate) use guard::Guard;
pub(crate) use subject::{Question, Soon, Subject, Totals, Who};
pub(crate) use tokens::{Role, Tokens};

use asking::Places;
use events::Events;
use history::History;
use quota::Quota;

use crate::watch::Watch;

/// Where operators connect unless they say otherwise.
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8889));

/// What operators are shown.
pub(crate) struct Console {
    /// All metrics.
    registry: Registry,
    subject: Arc<dyn Subject>,
    watch: Arc<Watch>,
    guard: Guard,
    events: Events,
    history: Mutex<History>,
    config: Mutex<Config>,
    /// Reports that are being read.
    reports: Arc<Quota>,
    places: Places,
    started: Moment,
}

impl Console {
    /// Shows `subject` and `watch` to those whom `guard` lets in.
    pub(crate) fn new(
        mut registry: Registry,
        subject: Arc<dyn Subject>,
        watch: Arc<Watch>,
        guard: Guard,
        config: Config,
    ) -> Arc<Self> {
        let started = watch.calendar().now();
        let help = "Wrong tokens that were shown to the admin address";
        registry.register("tollgate_admin_wrong_tokens", help, guard.wrong_tokens());
        let (events, history, config) = (Events::default(), Mutex::default(), Mutex::new(config));
        let (reports, places) = (Quota::new(flags::REPORTS_AT_ONCE_MAX), Places::default());
        Arc::new(Self { registry, subject, watch, guard, events, history, config, reports, places, started })
    }

    /// Settings were read again: with what outcome, and what of them waits for a new start?
    pub(crate) fn reloaded(&self, outcome: Result<(Config, Vec<String>), String>) {
        let at = self.watch.calendar().now();
        let mut config = self.config();
        match outcome {
            Ok((new, waiting)) => *config = config.succeeded_by(new, at, waiting),
            Err(faults) => {
                // What waits goes on waiting.
                let waiting = config.reloaded.take().map_or_else(Vec::new, |last| last.waiting);
                config.reloaded = Some(Reloaded { at, faults: Some(faults), waiting });
            }
        }
    }

    /// Who may come in.
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Who was refused.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// All metrics, as they are now.
    pub(crate) fn metrics_text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing into a string cannot fail");
        text
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything but the watch. To be called once a second, where taking a while hurts nobody.
    fn tick(&self) {
        self.subject.tick();
        if let Some(totals) = self.subject.totals() {
            let now = self.watch.calendar().now();
            self.history().take(totals, now);
        }
        if self.events.has_readers() {
            self.events.publish(api::status_text(self));
        }
    }
}

/// Opens the address.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen for operators on {address}: {error}")))?;
    tracing::info!(address = %listener.local_addr()?, "operators may connect");
    Ok(listener)
}

/// Serves operators until the process ends.
pub(crate) async fn serve(listener: TcpListener, console: Arc<Console>) {
    // The watch may wait for a disk: what is shown of everything else goes on.
    tokio::spawn(every_second(console.clone(), |console| console.watch.tick()));
    tokio::spawn(every_second(console.clone(), Console::tick));
    server::serve(listener, router(console)).await;
}

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
        .fallback(|| async { problem::Problem::absent("there is nothing here") })
        .method_not_allowed_fallback(|| async {
            problem::Problem::new(StatusCode::METHOD_NOT_ALLOWED, "that cannot be done with this")
        })
        .layer(from_fn_with_state(console.clone(), guard::guard))
        .with_state(console)
}

async fn readyz(State(console): State<Arc<Console>>) -> impl IntoResponse {
    let ready = console.subject.is_ready();
    if ready { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn metrics(State(console): State<Arc<Console>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], console.metrics_text())
}

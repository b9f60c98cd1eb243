//! The address for operators: whether the process is alive, whether it can serve, and its metrics.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

/// Where operators connect unless they say otherwise.
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8889));

/// What operators are shown.
pub(crate) struct Console {
    /// All metrics.
    pub(crate) registry: Registry,
    /// Whether requests can be served.
    pub(crate) is_ready: Box<dyn Fn() -> bool + Send + Sync>,
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
pub(crate) async fn serve(listener: TcpListener, console: Console) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(console));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "operators can no longer connect");
    }
}

async fn readyz(State(console): State<Arc<Console>>) -> impl IntoResponse {
    if (console.is_ready)() { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn metrics(State(console): State<Arc<Console>>) -> impl IntoResponse {
    let mut text = String::new();
    let encoded = prometheus_client::encoding::text::encode(&mut text, &console.registry);
    let status = if encoded.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

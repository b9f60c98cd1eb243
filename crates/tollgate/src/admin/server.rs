//! The server behind the address for operators: few connections, none for ever.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use super::guard::Peer;

/// How many may be connected at once.
const CONNECTIONS_MAX: usize = 256;
/// How long a request's head may take to arrive, and a connection may be idle.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// How large a head may be.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                tokio::spawn(converse(stream, Peer(peer), router.clone(), place));
            }
            Err(error) => {
                tracing::warn!(%error, "an operator cannot connect");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, peer: Peer, router: Router, _place: OwnedSemaphorePermit) {
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let mut router = router.clone();
        async move { router.call(request.map(Body::new) as Request).await }
    });
    let mut connection = http1::Builder::new();
    connection.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = connection.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "an operator's connection ended");
    }
}

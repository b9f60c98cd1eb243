//! The server behind the admin address: few connections, each of which ends or makes room for another.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tower_service::Service;

use super::connections::{Activity, AdminConnection, AdminConnections, Scope};
use super::guard::Peer;
use super::paced::Paced;
use super::problem::Problem;

/// How long a request's head may take to arrive, and a connection may be idle.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// The same for a health check in the reserve: it connects to send its request.
const HEALTH_HEAD_MAX: Duration = Duration::from_secs(5);
/// How large a head may be.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let connections = Arc::<AdminConnections>::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                let connection = connections.enter(peer.ip(), Instant::now());
                tokio::spawn(converse(stream, Peer(peer), router.clone(), connection));
            }
            Err(error) => {
                tracing::warn!(%error, "an operator cannot connect");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Serves one connection until it ends, or until another takes its place.
async fn converse(stream: TcpStream, peer: Peer, router: Router, connection: AdminConnection) {
    let (scope, activity) = (connection.scope, &connection.activity);
    let io = TokioIo::new(Paced::new(stream, activity.clone()));
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        let guard = Serving::begin(activity.clone(), request.body().is_end_stream());
        request.extensions_mut().insert(peer);
        let (mut router, activity) = (router.clone(), activity.clone());
        async move {
            let response = match scope {
                Scope::HealthChecks if !is_health_check(&request) => no_room(),
                _ => router.call(request.map(|body| Body::new(Arriving { body, activity })) as Request).await?,
            };
            Ok::<_, std::convert::Infallible>(response.map(|body| Guarded { body, _guard: guard }))
        }
    });
    let mut builder = http1::Builder::new();
    let (head_max, keeps) = match scope {
        Scope::Everything => (HEAD_MAX, true),
        Scope::HealthChecks => (HEALTH_HEAD_MAX, false),
    };
    builder.timer(TokioTimer::new()).header_read_timeout(head_max).max_buf_size(HEAD_BYTES_MAX).keep_alive(keeps);
    let served = pin!(builder.serve_connection(io, answer));
    tokio::select! {
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "an operator's connection ended");
        },
        () = activity.replaced() => tracing::debug!(from = %peer.0, "an operator's connection made room for another"),
    }
}

/// Whether a request asks for the state of the process, which needs no token.
pub(super) fn is_health_check<B>(request: &hyper::Request<B>) -> bool {
    matches!(request.uri().path(), "/healthz" | "/readyz")
}

/// The answer to every other request while only the reserve has room.
fn no_room() -> Response {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "all connections of the admin address are in use");
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A request that is being served, until this is dropped.
struct Serving(Arc<Activity>);

impl Serving {
    /// Until its body is complete, a request is not served: a client that sends it slowly holds a connection as one
    /// that sends its head slowly does.
    fn begin(activity: Arc<Activity>, is_complete: bool) -> Self {
        if is_complete {
            activity.serves();
        }
        Self(activity)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.rests();
    }
}

/// The body of a request. The request is being served once the body is complete.
struct Arriving {
    body: Incoming,
    activity: Arc<Activity>,
}

impl hyper::body::Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || (polled.is_ready() && self.body.is_end_stream()) {
            self.activity.serves();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response; its request is being served until the body has been handed over.
struct Guarded {
    body: Body,
    _guard: Serving,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

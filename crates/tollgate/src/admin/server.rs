//! The HTTP server of the admin address: accepts connections and serves requests with the router. The number of
//! connections is bounded ([`AdminConnections`]): a new one may replace another, and if none can be replaced, the new
//! one is in a reserve for health checks.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tower_service::Service;

use super::connections::{Activity, AdminConnection, AdminConnections, Scope};
use super::guard::PeerAddress;
use super::paced_stream::PacedStream;
use super::problem::AdminProblem;

/// Longest time until the head of the next request has arrived, including the time in which the connection is idle.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// The same for a connection in the reserve: a health check sends its request at once.
const HEALTH_HEAD_WAIT_MAX: Duration = Duration::from_secs(5);
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let connections = Arc::<AdminConnections>::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                let connection = connections.enter(peer.ip(), Instant::now());
                tokio::spawn(serve_connection(stream, PeerAddress(peer), router.clone(), connection));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin address");
                // The cause, such as too many open files, may last.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Serves one connection until it ends or is replaced.
async fn serve_connection(stream: TcpStream, peer: PeerAddress, router: Router, connection: AdminConnection) {
    let (scope, activity) = (connection.scope, &connection.activity);
    let io = TokioIo::new(PacedStream::new(stream, activity.clone()));
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        let guard = ServedRequest::begin(activity.clone(), request.body().is_end_stream());
        request.extensions_mut().insert(peer);
        let (mut router, activity) = (router.clone(), activity.clone());
        async move {
            let response = match scope {
                Scope::HealthChecks if !is_health_check(&request) => no_room(),
                _ => router.call(request.map(|body| Body::new(RequestBody { body, activity })) as Request).await?,
            };
            // The body holds the guard until it is sent.
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                body.map_err(move |error| {
                    let _held = &guard;
                    error
                })
            }))
        }
    });
    let mut builder = http1::Builder::new();
    let (head_wait, keep_alive) = match scope {
        Scope::Everything => (HEAD_WAIT_MAX, true),
        Scope::HealthChecks => (HEALTH_HEAD_WAIT_MAX, false),
    };
    builder.timer(TokioTimer::new()).header_read_timeout(head_wait).max_buf_size(HEAD_BYTES_MAX).keep_alive(keep_alive);
    let served = pin!(builder.serve_connection(io, answer));
    tokio::select! {
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "connection to the admin address failed");
        },
        () = activity.replaced.notified() => tracing::debug!(from = %peer.0, "connection to the admin address was replaced"),
    }
}

/// Whether a request is a health check, which needs no token.
pub(super) fn is_health_check<B>(request: &hyper::Request<B>) -> bool {
    matches!(request.uri().path(), "/healthz" | "/readyz")
}

/// Response to other requests on a connection in the reserve.
fn no_room() -> Response {
    let problem = AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, "all connections of the admin address are in use");
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Marks the connection as serving a request until dropped.
struct ServedRequest(Arc<Activity>);

impl ServedRequest {
    /// A request counts as being served only once its body is complete: otherwise a client that sends its body slowly
    /// could prevent that its connection is replaced. `has_whole_body`: the request has no body.
    fn begin(activity: Arc<Activity>, has_whole_body: bool) -> Self {
        if has_whole_body {
            activity.set_serving(true);
        }
        Self(activity)
    }
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        self.0.set_serving(false);
    }
}

/// A request body. When it is complete, the request counts as being served ([`ServedRequest::begin`]).
struct RequestBody {
    body: Incoming,
    activity: Arc<Activity>,
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || (polled.is_ready() && self.body.is_end_stream()) {
            self.activity.set_serving(true);
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

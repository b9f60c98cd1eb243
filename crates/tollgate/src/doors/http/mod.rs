//! The HTTP door: applications and proxies ask for decisions and report the cost of requests.

mod answer;
mod auth;
mod body;
mod check;
mod check_json;
mod json;
mod load;
mod problem;
mod report;

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::connections::Usage;
use super::metrics::Count;
use super::station::Station;
use body::Whole;
use problem::DoorProblem;

/// Timeout for the head of a call, and for an idle connection. Clients reuse connections.
const HEAD_MAX: Duration = Duration::from_secs(60);
/// Maximum size of the head of a call, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves one connection until it ends.
pub(super) async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let answer = service_fn(|request| {
        let (station, usage) = (station.clone(), usage.clone());
        async move {
            let serving = ServingGuard::begin(&usage);
            let response = answer(&station, &usage, peer, request).await;
            drop(serving);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    // Without `pipeline_flush`: it reads and answers pipelined calls while the client does not read the responses.
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let ended = tokio::select! {
        ended = &mut served => ended,
        _ = drains.wait_for(|is_draining| *is_draining) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection to the HTTP door ended");
    }
}

/// Marks the connection as serving a call until this is dropped.
struct ServingGuard<'a>(&'a Usage);

impl<'a> ServingGuard<'a> {
    fn begin(usage: &'a Usage) -> Self {
        usage.set_serving(true);
        Self(usage)
    }
}

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        self.0.set_serving(false);
    }
}

async fn answer(station: &Station, usage: &Usage, peer: SocketAddr, request: Request<Incoming>) -> Response<Whole> {
    let is_auth = matches!(request.uri().path(), "/v1/auth" | "/v1/auth/nginx");
    // In a call of a proxy, `Authorization` comes from the client and is meant for the backend of the proxy.
    let token = if is_auth { auth::token(&request) } else { bearer(request.headers()).map(Cow::Borrowed) };
    if !station.lets_in(token.as_deref()) {
        station.count(Count::Unauthorized);
        return closing(DoorProblem::unauthorized().response());
    }
    usage.is_of_use();
    // hyper reads the next call as soon as it has skipped an unread body, even if the client reads no responses.
    let leaves_body = (is_auth || request.uri().query().is_some()) && !request.body().is_end_stream();
    let answered = route(station, peer, request).await;
    let response = answered.unwrap_or_else(|problem| {
        station.count(Count::Malformed);
        problem.response()
    });
    if leaves_body { closing(response) } else { response }
}

/// The response, after which the connection closes.
fn closing(mut response: Response<Whole>) -> Response<Whole> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn route(
    station: &Station,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Whole>, DoorProblem> {
    let path = request.uri().path();
    match path {
        "/v1/auth" => auth::auth(station, peer, &request, auth::Proxy::Plain).await,
        "/v1/auth/nginx" => auth::auth(station, peer, &request, auth::Proxy::Nginx).await,
        // A proxy can report with the query alone, with any method.
        "/v1/report" if request.uri().query().is_some() => report::report_query(station, request.uri()),
        "/v1/check" | "/v1/report" | "/v1/load" | "/json" if request.method() != Method::POST => {
            Err(DoorProblem::method("POST"))
        }
        "/v1/check" | "/v1/report" | "/v1/load" | "/json" if is_of_a_browser(station, request.headers()) => {
            Err(DoorProblem::browser())
        }
        "/json" => json::json(station, request.into_body()).await,
        "/v1/check" => check::check(station, request.into_body()).await,
        "/v1/load" => load::load(station, request.into_body()).await,
        "/v1/report" => report::report(station, request.into_body()).await,
        _ => Err(DoorProblem::absent()),
    }
}

/// The token in `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether a page in a browser makes the call, while no token is required. Any page that is open in a browser on this
/// machine could then call the door.
fn is_of_a_browser(station: &Station, headers: &HeaderMap) -> bool {
    !station.asks_for_token() && (headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site"))
}

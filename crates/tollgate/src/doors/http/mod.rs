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
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connections::Usage;
use super::metrics::Count;
use super::station::Station;
use super::thread::DoorPeer;
use body::Whole;
use problem::DoorProblem;

/// Timeout from the end of a call to the complete head of the next one. Clients reuse connections.
const HEAD_MAX: Duration = Duration::from_secs(60);
/// Minimum time between two checks of the timeout.
const TIMER_MIN: Duration = Duration::from_secs(1);
/// Maximum size of the head of a call, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves one connection until it ends.
pub(super) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: DoorPeer,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let answer = service_fn(|request| {
        let (station, usage) = (station.clone(), usage.clone());
        async move { Ok::<_, Infallible>(answer(&station, &usage, peer, request).await) }
    });
    let mut builder = http1::Builder::new();
    // Without `pipeline_flush`: it reads and answers pipelined calls while the client does not read the responses.
    // Without `header_read_timeout`: it sets a timer for each call. Without `writev`: responses are small.
    builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).writev(false);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let mut timer = pin!(tokio::time::sleep(HEAD_MAX));
    let ended = loop {
        tokio::select! {
            ended = &mut served => break ended,
            () = &mut timer => {
                let deadline = usage.used_at() + HEAD_MAX;
                if !usage.is_serving() && deadline <= Instant::now() {
                    return;
                }
                timer.as_mut().reset(deadline.max(Instant::now() + TIMER_MIN));
            }
            _ = drains.wait_for(|is_draining| *is_draining) => {
                served.as_mut().graceful_shutdown();
                break served.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.address, %error, "a connection to the HTTP door ended");
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

async fn answer(station: &Station, usage: &Usage, peer: DoorPeer, request: Request<Incoming>) -> Response<Whole> {
    usage.touch();
    let is_auth = matches!(request.uri().path(), "/v1/auth" | "/v1/auth/nginx");
    // In a call of a proxy, `Authorization` comes from the client and is meant for the backend of the proxy.
    let token = if is_auth { auth::token(&request) } else { bearer(request.headers()).map(Cow::Borrowed) };
    if !peer.has_certificate && !station.lets_in(token.as_deref()) {
        station.count(Count::Unauthorized);
        return closing(DoorProblem::unauthorized().response());
    }
    usage.is_of_use();
    // hyper reads the next call as soon as it has skipped an unread body, even if the client reads no responses.
    let leaves_body = (is_auth || request.uri().query().is_some()) && !request.body().is_end_stream();
    let answered = route(station, usage, peer, request).await;
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
    usage: &Usage,
    peer: DoorPeer,
    request: Request<Incoming>,
) -> Result<Response<Whole>, DoorProblem> {
    let is_of_a_browser = is_of_a_browser(station, peer, request.headers());
    match request.uri().path() {
        path @ ("/v1/auth" | "/v1/auth/nginx") => {
            let proxy = if path == "/v1/auth" { auth::Proxy::Plain } else { auth::Proxy::Nginx };
            let _serving = ServingGuard::begin(usage);
            auth::auth(station, peer.address, &request, proxy).await
        }
        // A proxy can report with the query alone, with any method.
        "/v1/report" if request.uri().query().is_some() => report::report_query(station, request.uri()),
        "/v1/check" | "/v1/report" | "/v1/load" | "/json" if request.method() != Method::POST => {
            Err(DoorProblem::method("POST"))
        }
        "/v1/check" | "/v1/report" | "/v1/load" | "/json" if is_of_a_browser => Err(DoorProblem::browser()),
        "/v1/check" | "/v1/report" | "/v1/load" | "/json" => {
            let (parts, body) = request.into_parts();
            // The call is not in progress yet: a client that withholds its body can be closed for another one.
            let bytes = body::read(body).await?;
            let _serving = ServingGuard::begin(usage);
            match parts.uri.path() {
                "/v1/check" => check::check(station, &bytes).await,
                "/v1/report" => report::report(station, &bytes),
                "/v1/load" => load::load(station, &bytes),
                _ => json::json(station, &bytes).await,
            }
        }
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
/// machine could then call the door. A browser also sends the client certificate of its user for any page.
fn is_of_a_browser(station: &Station, peer: DoorPeer, headers: &HeaderMap) -> bool {
    (peer.has_certificate || !station.asks_for_token())
        && (headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site"))
}

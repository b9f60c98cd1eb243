//! The gRPC door: Envoy's rate limit service and rate limit quota service, with health and reflection.
//! `docs/door-envoy.md` describes it for users.
//!
//! The services run on the thread of the connection, with its [`Station`], so their futures need not move between
//! threads. tonic's own server requires futures that can, so only tonic's codec is used, on hyper's HTTP/2 server.
//! Everything is bounded: connections by [`connections`](super::connections), streams and message sizes here, and the
//! time of a call.

mod descriptor_request;
pub(super) mod json;
pub(super) mod messages;
mod quota;
mod quota_messages;
mod quota_registry;
pub(super) mod rate_limit;
mod status;
mod unit;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_prost::ProstCodec;
use tower_service::Service as _;

use super::connections::Usage;
use super::metrics::Count;
use super::station::{Station, bearer};
use super::thread::DoorPeer;
use messages::{RateLimitRequest, RateLimitResponse};
pub(super) use quota_registry::QuotaRegistry;

/// The maximum size of a message in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum size of the metadata of a call in bytes.
const METADATA_BYTES_MAX: u32 = 16 << 10;
/// The maximum number of concurrent calls on a connection. Envoy has one connection per worker thread.
const STREAMS_MAX: u32 = 1024;
/// The maximum number of received bytes of one call that wait to be read.
const STREAM_WINDOW_BYTES: u32 = MESSAGE_BYTES_MAX as u32;
/// The same for all calls of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
/// The longest time that a call may take, its message included.
const CALL_MAX: Duration = Duration::from_secs(10);
/// The longest time that a connection may be open before its first valid call.
const FIRST_CALL_MAX: Duration = Duration::from_secs(20);
/// The maximum number of concurrent health watches on a connection. They need no token and have no time limit.
const HEALTH_WATCHES_MAX: usize = 4;
/// The interval of HTTP/2 pings, which test whether the client is still there.
const PING_EVERY: Duration = Duration::from_secs(30);
/// A connection whose client does not answer a ping within this time is closed.
const PING_MAX: Duration = Duration::from_secs(20);

/// The path of the rate limit service's method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The name of the rate limit service.
const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of the quota service's method.
const STREAM_QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// The name of the quota service.
const QUOTA_SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";

/// The path of the health service's method whose response does not end.
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The descriptions of the services for reflection: `crates/tollgate/proto/README.md` describes the file.
const SERVICES: &[u8] = include_bytes!("../../../proto/services.bin");

/// The services that health checks can name. The empty name stands for all.
const HEALTHY: [&str; 3] = ["", RATE_LIMIT_SERVICE, QUOTA_SERVICE];

type Answer = Response<Body>;

/// Serves one connection until it ends.
pub(super) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: DoorPeer,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let health = HealthReporter::new();
    for service in HEALTHY {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let services = Rc::new(Services {
        station,
        has_certificate: peer.has_certificate,
        usage: usage.clone(),
        calls: Cell::new(0),
        has_health_call: Cell::new(false),
        health: health.clone(),
        health_watches: Arc::new(Semaphore::new(HEALTH_WATCHES_MAX)),
        drains: drains.clone(),
    });
    let service = service_fn(|request| {
        let services = services.clone();
        async move { Ok::<_, Infallible>(services.answer(request).await) }
    });
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(METADATA_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(MESSAGE_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut first_call = pin!(tokio::time::sleep(FIRST_CALL_MAX));
    let mut awaits_first_call = true;
    let ended = loop {
        tokio::select! {
            ended = &mut served => break ended,
            () = &mut first_call, if awaits_first_call => {
                if !usage.is_useful.get() && !services.has_health_call.get() {
                    tracing::debug!("a connection to the gRPC door made no call in time");
                    return;
                }
                awaits_first_call = false;
            }
            _ = drains.wait_for(|is_draining| *is_draining) => {
                end_health(health).await;
                served.as_mut().graceful_shutdown();
                break served.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the gRPC door ended");
    }
}

/// Reports to health watchers that the door drains, and ends their streams.
async fn end_health(mut health: HealthReporter) {
    for service in HEALTHY {
        health.set_service_status(service, ServingStatus::NotServing).await;
    }
    tokio::task::yield_now().await;
    for service in HEALTHY {
        health.clear_service_status(service).await;
    }
}

/// Runs the calls of a connection on its own thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// The services for one connection.
struct Services {
    station: Rc<Station>,
    /// Whether the client has authenticated with a certificate.
    has_certificate: bool,
    usage: Rc<Usage>,
    /// The number of authorized calls whose message is complete.
    calls: Cell<usize>,
    /// Whether a health call without a token has arrived. It keeps the connection open beyond [`FIRST_CALL_MAX`], but
    /// at the bound on connections it does not count as a useful one.
    has_health_call: Cell<bool>,
    health: HealthReporter,
    /// One permit per health watch.
    health_watches: Arc<Semaphore>,
    drains: watch::Receiver<bool>,
}

/// Marks the connection as serving a call until this is dropped. It begins when the message is complete: a client that
/// withholds its message can be closed for another one.
struct ServedCall(Rc<Services>);

impl ServedCall {
    fn begin(services: &Rc<Services>) -> Self {
        services.calls.set(services.calls.get() + 1);
        services.usage.set_serving(true);
        Self(services.clone())
    }
}

impl Drop for ServedCall {
    fn drop(&mut self) {
        let calls = self.0.calls.get() - 1;
        self.0.calls.set(calls);
        self.0.usage.set_serving(calls > 0);
    }
}

impl Services {
    /// Authorizes a call and responds to it.
    async fn answer(self: &Rc<Self>, request: Request<Incoming>) -> Answer {
        let token = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let is_authorized = self.has_certificate || self.station.lets_in(token);
        // Health checks need no token: checkers have none, and the response reveals only that the door serves.
        if !is_authorized && !is_health(&request) {
            self.station.count(Count::Unauthorized);
            return Status::unauthenticated("this door asks for the metadata `authorization: Bearer TOKEN`")
                .into_http();
        }
        if is_authorized {
            self.usage.is_useful.set(true);
        } else {
            self.has_health_call.set(true);
        }
        let answered = tokio::time::timeout(CALL_MAX, self.route(request)).await;
        answered.unwrap_or_else(|_| {
            self.station.count(Count::Malformed);
            Status::deadline_exceeded("the message did not arrive in time").into_http()
        })
    }

    async fn route(self: &Rc<Self>, request: Request<Incoming>) -> Answer {
        match request.uri().path() {
            SHOULD_RATE_LIMIT => {
                let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
                let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
                grpc.unary(ShouldRateLimit(self.clone()), request).await
            }
            STREAM_QUOTAS => quota::stream(&self.station, self.drains.clone(), request).await,
            HEALTH_WATCH => self.watch_health(request).await,
            _ if is_health(&request) => self.answer_health(request).await,
            path if path.starts_with("/grpc.reflection.") => Box::pin(reflect(request)).await,
            _ => Status::unimplemented("there is no such method").into_http(),
        }
    }

    async fn answer_health(&self, request: Request<Incoming>) -> Answer {
        let mut server = HealthServer::new(HealthService::from_health_reporter(self.health.clone()));
        server.call(request).await.unwrap_or_else(|never| match never {})
    }

    async fn watch_health(&self, request: Request<Incoming>) -> Answer {
        let Ok(permit) = self.health_watches.clone().try_acquire_owned() else {
            let message = format!("a connection may have {HEALTH_WATCHES_MAX} health watches");
            return Status::resource_exhausted(message).into_http();
        };
        // The body holds the permit until the stream ends.
        self.answer_health(request).await.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &permit;
                frame
            }))
        })
    }
}

fn is_health(request: &Request<Incoming>) -> bool {
    request.uri().path().starts_with("/grpc.health.v1.Health/")
}

/// The method of the rate limit service.
struct ShouldRateLimit(Rc<Services>);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>>>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let serving = ServedCall::begin(&self.0);
        Box::pin(async move {
            let station = &serving.0.station;
            match rate_limit::should_rate_limit(station, request.get_ref()).await {
                Ok(response) => Ok(tonic::Response::new(response)),
                Err(bad) => {
                    station.count(Count::Malformed);
                    Err(Status::invalid_argument(bad))
                }
            }
        })
    }
}

/// Answers calls of gRPC reflection, in both versions of that service.
async fn reflect(request: Request<Incoming>) -> Answer {
    let builder = tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(SERVICES);
    let built = "a test reads the descriptors";
    let answered = match request.uri().path().starts_with("/grpc.reflection.v1alpha.") {
        true => builder.build_v1alpha().expect(built).call(request).await,
        false => builder.build_v1().expect(built).call(request).await,
    };
    answered.unwrap_or_else(|never| match never {})
}

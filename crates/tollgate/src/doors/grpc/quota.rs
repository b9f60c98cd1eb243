//! Envoy's rate limit quota service. Envoy groups requests into buckets and decides about them locally, from
//! assignments that it gets here: a token bucket, or to refuse all. On a stream, it reports how many requests it has
//! admitted.
//!
//! A bucket is subject to the same limit as a descriptor with its entries. The limit is divided evenly between the
//! streams that report the bucket, so that all together are never assigned more than the limit, except that each stream
//! has at least one request per window. Reported requests are charged to the limit, as are those of other doors: while
//! the limit is used up, the assignment is to refuse all. An assignment is renewed on each report, and expires if
//! reports stop.

use std::future::{Ready, ready};
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tollgate_core::time::Span;
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{DescriptorEntry, RateLimitDescriptor, duration};
use super::quota_messages::{
    Action, Assignment, BucketAction, BucketId, BucketUsage, DENY_ALL, QuotaResponse, Strategy, StrategyKind,
    TokenBucket, UsageReports,
};
use super::quota_registry::Subscriptions;
use super::rate_limit::{QuotaFigures, charge_usage};
use super::{Answer, MESSAGE_BYTES_MAX};
use crate::doors::metrics::Count;
use crate::doors::station::Station;

/// The maximum number of buckets of one stream.
const BUCKETS_MAX: usize = 1024;
/// The maximum number of entries of a bucket.
const ENTRIES_MAX: usize = 16;
/// The longest time between two reports of a stream, after which it ends.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// The number of responses that may wait for a client that reads slowly.
const RESPONSES_MAX: usize = 4;
/// An assignment is valid for three times the interval of reports, but at least for this time.
const LIFE_MIN: Span = Span::from_secs(60);
/// The longest time for which an assignment is valid.
const LIFE_MAX: Span = Span::from_secs(3_600);
/// The shortest time for which all requests are refused.
const DENIAL_MIN: Span = Span::from_secs(1);

type Responses = mpsc::Sender<Result<QuotaResponse, Status>>;

/// Serves a stream. The response begins at once; the rest runs in a task of this thread.
pub(super) async fn stream(station: &Rc<Station>, drains: watch::Receiver<bool>, request: Request<Incoming>) -> Answer {
    let (responses, receiver) = mpsc::channel(RESPONSES_MAX);
    let (reports_in, reports) = oneshot::channel();
    let service = StreamQuotas { reports: Some(reports_in), responses: Some(ReceiverStream::new(receiver)) };
    let codec = ProstCodec::<QuotaResponse, UsageReports>::default();
    let answer = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX).streaming(service, request).await;
    if let Ok(reports) = reports.await {
        let station = station.clone();
        tokio::task::spawn_local(async move {
            if let Err(status) = serve(&station, reports, &responses, drains).await {
                station.count(Count::Malformed);
                let _ = responses.send(Err(status)).await;
            }
        });
    }
    answer
}

/// Passes the reports of a stream to its task. tonic requires a service that can move between threads, which the
/// station cannot.
struct StreamQuotas {
    reports: Option<oneshot::Sender<Streaming<UsageReports>>>,
    responses: Option<ReceiverStream<Result<QuotaResponse, Status>>>,
}

impl StreamingService<UsageReports> for StreamQuotas {
    type Response = QuotaResponse;
    type ResponseStream = ReceiverStream<Result<QuotaResponse, Status>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<UsageReports>>) -> Self::Future {
        let (Some(reports), Some(responses)) = (self.reports.take(), self.responses.take()) else {
            return ready(Err(Status::internal("a stream is served once")));
        };
        let _ = reports.send(request.into_inner());
        ready(Ok(tonic::Response::new(responses)))
    }
}

/// Reads reports and sends assignments until the stream ends.
async fn serve(
    station: &Station,
    mut reports: Streaming<UsageReports>,
    responses: &Responses,
    mut drains: watch::Receiver<bool>,
) -> Result<(), Status> {
    let mut subscriptions = Subscriptions::new(station.limits.quotas.clone());
    let mut domain = String::new();
    loop {
        let message = tokio::select! {
            message = tokio::time::timeout(SILENCE_MAX, reports.message()) => message,
            // The client opens a stream to another process, or again later.
            _ = drains.wait_for(|is_draining| *is_draining) => return Ok(()),
        };
        let Ok(message) = message else { return Err(Status::deadline_exceeded("no report for 10 minutes")) };
        let Some(message) = message? else { return Ok(()) };
        if domain.is_empty() {
            domain.clone_from(&message.domain);
        }
        if domain.is_empty() {
            return Err(Status::invalid_argument("the first report of a stream has a domain"));
        }
        let mut bucket_action = Vec::with_capacity(message.bucket_quota_usages.len());
        for usage in message.bucket_quota_usages {
            bucket_action.push(assign(station, &domain, usage, &mut subscriptions).await?);
        }
        if !bucket_action.is_empty() && responses.send(Ok(QuotaResponse { bucket_action })).await.is_err() {
            return Ok(());
        }
    }
}

/// Charges a report, and makes a new assignment.
async fn assign(
    station: &Station,
    domain: &str,
    usage: BucketUsage,
    subscriptions: &mut Subscriptions,
) -> Result<BucketAction, Status> {
    let descriptor = descriptor_of(usage.bucket_id.as_ref())?;
    let streams = subscriptions.add(domain, &descriptor.entries, BUCKETS_MAX);
    let streams = streams.ok_or_else(|| Status::resource_exhausted("too many buckets"))?;
    let figures = charge_usage(station, domain, &descriptor, usage.num_requests_allowed).await;
    let figures = figures.map_err(Status::invalid_argument)?;
    let elapsed = usage.time_elapsed.map_or(0, |elapsed| u64::try_from(elapsed.seconds).unwrap_or(0));
    let life = Span::from_secs(elapsed.saturating_mul(3)).clamp(LIFE_MIN, LIFE_MAX);
    let (strategy, life) = match figures {
        QuotaFigures::NoLimit => (None, life),
        QuotaFigures::Blocked => (Some(StrategyKind::BlanketRule(DENY_ALL)), life),
        QuotaFigures::UsedUp(reset) => (Some(StrategyKind::BlanketRule(DENY_ALL)), reset.clamp(DENIAL_MIN, LIFE_MAX)),
        QuotaFigures::Limit { quota, window } => (Some(share(quota, window, streams)), life),
    };
    let assignment =
        Assignment { assignment_time_to_live: Some(duration(life)), rate_limit_strategy: Some(Strategy { strategy }) };
    Ok(BucketAction { bucket_id: usage.bucket_id, bucket_action: Some(Action::Assign(assignment)) })
}

/// The part of a limit that one of several streams may use.
fn share(quota: u64, window: Span, streams: u64) -> StrategyKind {
    let tokens = u32::try_from((quota / streams.max(1)).max(1)).unwrap_or(u32::MAX);
    StrategyKind::TokenBucket(TokenBucket {
        max_tokens: tokens,
        tokens_per_fill: Some(tokens),
        fill_interval: Some(duration(window)),
    })
}

/// A bucket as a descriptor, with its entries in the order of their keys.
fn descriptor_of(bucket: Option<&BucketId>) -> Result<RateLimitDescriptor, Status> {
    let entries = bucket.map(|bucket| &bucket.bucket).filter(|entries| !entries.is_empty());
    let entries = entries.ok_or_else(|| Status::invalid_argument("a bucket has no id"))?;
    if entries.len() > ENTRIES_MAX {
        return Err(Status::invalid_argument(format!("a bucket has more than {ENTRIES_MAX} entries")));
    }
    let mut entries: Vec<DescriptorEntry> =
        entries.iter().map(|(key, value)| DescriptorEntry { key: key.clone(), value: value.clone() }).collect();
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() })
}

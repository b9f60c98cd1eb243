//! The responses to refused requests, and the rate-limit headers of all responses of the tower layer.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::time::Moment;
use tollgate_wire::grpc;

use super::keeper::Keeper;
use crate::limit_status::{self, Field};

// The names of the fields, in their order. Created once, because parsing a header name costs more than the decision.
static NAMES: [HeaderName; 5] = [
    HeaderName::from_static(Field::Policy.as_str()),
    HeaderName::from_static(Field::Limit.as_str()),
    HeaderName::from_static(Field::Remaining.as_str()),
    HeaderName::from_static(Field::Clear.as_str()),
    HeaderName::from_static(Field::Reset.as_str()),
];

/// The content type of a gRPC request, whose refusals have a gRPC status; `None` for other requests.
pub(super) fn grpc_of(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(CONTENT_TYPE).filter(|kind| grpc::is_grpc(kind.as_bytes())).cloned()
}

/// The response to a refused request, with `Retry-After` and without rate-limit headers: status 429, or a gRPC status
/// if `grpc` is the content type of the request.
pub(super) fn refusal<B: Default>(verdict: Verdict, now: Moment, grpc: Option<HeaderValue>) -> Response<B> {
    let mut response = Response::new(B::default());
    let waits = verdict != Verdict::RefuseForGood;
    let seconds = waits.then(|| verdict.retry_after(now).as_millis_ceil().div_ceil(1000));
    match grpc {
        Some(content_type) => {
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, content_type);
            headers.insert(grpc::STATUS, HeaderValue::from_static(grpc::RESOURCE_EXHAUSTED));
            headers.insert(grpc::MESSAGE, HeaderValue::from_static("too many requests"));
            let millis = seconds.map(|seconds| HeaderValue::from(seconds.saturating_mul(1000)));
            headers.insert(grpc::PUSHBACK, millis.unwrap_or(HeaderValue::from_static(grpc::NO_RETRY)));
        }
        None => *response.status_mut() = StatusCode::TOO_MANY_REQUESTS,
    }
    if let Some(seconds) = seconds {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds the rate-limit headers of the rule that determined the decision, if there is one.
pub(super) fn add_headers(keeper: &Keeper, decision: &Decision, headers: &mut HeaderMap) {
    let Some((place, info)) = decision.rule.zip(decision.info) else { return };
    let Some(rule) = keeper.limiter().rule(place) else { return };
    headers.reserve(NAMES.len());
    if let Some(policy) = keeper.policy(place) {
        headers.insert(NAMES[Field::Policy as usize].clone(), policy.clone());
    }
    let standing = limit_status::of(&rule.name, &rule.limit, info);
    let out = &mut Vec::with_capacity(64);
    limit_status::write_changing_fields(out, standing, decision.verdict.is_refusal(), |field, value| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(NAMES[field as usize].clone(), value);
        }
    });
}

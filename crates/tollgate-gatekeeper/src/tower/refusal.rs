//! What the client of a request is told: where it stands, and when to come back.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::time::Moment;

use super::keeper::Keeper;
use crate::standing::{self, Field};

const GRPC: &[u8] = b"application/grpc";
/// gRPC's RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: &str = "8";

// Made once: looking at a name anew for every answer costs more than the decision.
static POLICY: HeaderName = HeaderName::from_static(Field::Policy.name());
static LIMIT: HeaderName = HeaderName::from_static(Field::Limit.name());
static REMAINING: HeaderName = HeaderName::from_static(Field::Remaining.name());
static CLEAR: HeaderName = HeaderName::from_static(Field::Clear.name());
static RESET: HeaderName = HeaderName::from_static(Field::Reset.name());
/// How many of them one answer has at most.
const FIELDS_MAX: usize = 5;

/// Whether a request is gRPC, whose refusals have a status of their own.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(GRPC))
}

/// The answer to a request that is refused.
pub(super) fn refusal<B: Default>(keeper: &Keeper, decision: &Decision, now: Moment, is_grpc: bool) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    if is_grpc {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(RESOURCE_EXHAUSTED));
        headers.insert("grpc-message", HeaderValue::from_static("too many requests"));
    }
    if decision.verdict != Verdict::RefuseForGood {
        let seconds = decision.verdict.retry_after(now).as_millis_ceil().div_ceil(1000);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    tell(keeper, decision, headers);
    if !is_grpc {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    response
}

/// Adds where the client stands.
pub(super) fn tell(keeper: &Keeper, decision: &Decision, headers: &mut HeaderMap) {
    let Some((place, info)) = decision.rule.zip(decision.info) else { return };
    let Some(rule) = keeper.limiter().rule(place) else { return };
    headers.reserve(FIELDS_MAX);
    if let Some(policy) = keeper.policy(place) {
        headers.insert(POLICY.clone(), policy.clone());
    }
    let standing = standing::of(&rule.name, &rule.limit, info);
    standing::write_changing_fields(standing, decision.verdict.is_refusal(), |field, value| {
        let name = match field {
            Field::Policy => &POLICY,
            Field::Limit => &LIMIT,
            Field::Remaining => &REMAINING,
            Field::Clear => &CLEAR,
            Field::Reset => &RESET,
        };
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name.clone(), value);
        }
    });
}

//! The messages of Envoy's rate limit service v3, without the fields that have no effect here.
//!
//! They are declared by hand: there are few, and the crate with all types of Envoy takes longer to compile than the
//! rest of the doors. A test compares names and numbers with Envoy's own definitions. The decision page is
//! `docs/decisions/grpc.md`. The JSON form is that of proto3: [`mod@super::json`] reads and writes it.

use serde::{Deserialize, Serialize};
use tollgate_core::time::Span;

use super::json::{self, is_zero};

/// `RateLimitResponse.Code`: within the limit.
pub(super) const OK: i32 = 1;
/// `RateLimitResponse.Code`: over the limit.
pub(super) const OVER_LIMIT: i32 = 2;

/// A call: the question whether a request may pass, or a report of the cost of one.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitRequest {
    /// The set of limits that decides.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "json::or_default")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// The number of hits of descriptors without their own; 0 means 1.
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::small_number")]
    pub(crate) hits_addend: u32,
}

/// A description of the request, for which there may be a limit.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub(crate) entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    /// The number of hits to charge; 0 only checks.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::number")]
    pub(crate) hits_addend: Option<u64>,
    /// Whether the hits are returned instead of charged.
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits", deserialize_with = "json::or_default")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "json::or_default")]
    pub(crate) value: String,
}

/// A limit that comes with the descriptor.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "json::small_number")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "json::unit")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimitResponse {
    /// [`OK`] or [`OVER_LIMIT`].
    #[prost(int32, tag = "1")]
    #[serde(serialize_with = "json::write_code")]
    pub(crate) overall_code: i32,
    /// One for each descriptor of the call.
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    #[serde(serialize_with = "json::write_code")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json::write_duration")]
    pub(crate) duration_until_reset: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimit {
    #[prost(uint32, tag = "1")]
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    #[serde(skip_serializing_if = "is_zero", serialize_with = "json::write_unit")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// A span as Envoy's messages have it.
pub(super) fn duration(span: Span) -> prost_types::Duration {
    let nanos = span.as_nanos();
    prost_types::Duration { seconds: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as i32 }
}

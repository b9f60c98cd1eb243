//! The messages of Envoy's rate limit quota service v3, without the fields that have no effect here. Names and numbers
//! are Envoy's. On a stream, Envoy sends [`UsageReports`] and gets [`QuotaResponse`]s.

use std::collections::HashMap;

/// `RateLimitStrategy.BlanketRule`: refuse all requests.
pub(super) const DENY_ALL: i32 = 1;

/// The usage of some buckets since the last report.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UsageReports {
    /// Set in the first message of a stream.
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) bucket_quota_usages: Vec<BucketUsage>,
}

/// The usage of one bucket.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BucketUsage {
    #[prost(message, optional, tag = "1")]
    pub(super) bucket_id: Option<BucketId>,
    /// The time since the last report.
    #[prost(message, optional, tag = "2")]
    pub(super) time_elapsed: Option<prost_types::Duration>,
    /// The number of requests that Envoy has admitted in that time.
    #[prost(uint64, tag = "3")]
    pub(super) num_requests_allowed: u64,
}

/// The keys and values that identify a bucket: requests with these share a quota.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BucketId {
    #[prost(map = "string, string", tag = "1")]
    pub(super) bucket: HashMap<String, String>,
}

/// New assignments.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct QuotaResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) bucket_action: Vec<BucketAction>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub(super) bucket_id: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2")]
    pub(super) bucket_action: Option<Action>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Action {
    #[prost(message, tag = "2")]
    Assign(Assignment),
}

/// How Envoy decides about the requests of a bucket, for a limited time.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Assignment {
    #[prost(message, optional, tag = "2")]
    pub(super) assignment_time_to_live: Option<prost_types::Duration>,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit_strategy: Option<Strategy>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Strategy {
    #[prost(oneof = "StrategyKind", tags = "1, 3")]
    pub(super) strategy: Option<StrategyKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum StrategyKind {
    /// All requests are admitted, or all are refused ([`DENY_ALL`]).
    #[prost(int32, tag = "1")]
    BlanketRule(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(super) max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(super) fill_interval: Option<prost_types::Duration>,
}

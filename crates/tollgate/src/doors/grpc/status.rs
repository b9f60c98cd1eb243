//! The decision on a descriptor, its form in Envoy's response, and the rate limit headers for the client.

use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::limit_status::{self, Field};
use tollgate_wire::rate_limit_headers::LimitStatus;
use tollgate_wire::ratelimit_config::{LimitLeaf, LimitUnit};

use super::messages::{DescriptorStatus, HeaderValue, OK, OVER_LIMIT, RateLimit, duration};
use super::rate_limit::QuotaFigures;
use super::unit;
use crate::gate::Ruling;

/// The policy name of limits that come with a descriptor.
const OVERRIDE: &str = "override";

/// The decision on one descriptor.
pub(super) struct Judgement {
    pub(super) status: DescriptorStatus,
    /// Whether the limit is in quota mode: the request is refused only if all such limits are exceeded.
    pub(super) is_quota: bool,
    /// The decision of a rule, whose charge can still be returned.
    pub(super) ruling: Option<Ruling>,
    /// The number of hits that were charged.
    pub(super) hits: u64,
    /// The policy name in the headers, for a limit without a rule.
    policy: String,
    /// The quota and the window of a limit without a rule.
    quota: Option<(u64, Span)>,
    /// The time until the limit admits requests again if it is exceeded, otherwise until its full quota is available.
    reset: Span,
}

impl Judgement {
    fn new(status: DescriptorStatus) -> Self {
        let policy = String::new();
        Self { status, is_quota: false, ruling: None, hits: 0, policy, quota: None, reset: Span::ZERO }
    }

    /// The decision of a limit, with its state.
    fn limited(limit: RateLimit, is_over: bool, remaining: u64, reset: Span, hits: u64) -> Self {
        let status = DescriptorStatus {
            code: if is_over { OVER_LIMIT } else { OK },
            current_limit: Some(limit),
            limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(duration(reset)),
        };
        Self { hits, reset, ..Self::new(status) }
    }

    /// No limit applies to the descriptor.
    pub(super) fn without_limit() -> Self {
        Self::new(DescriptorStatus { code: OK, ..DescriptorStatus::default() })
    }

    /// The limit of the descriptor allows everything.
    pub(super) fn unlimited() -> Self {
        Self::new(DescriptorStatus { code: OK, limit_remaining: u32::MAX, ..DescriptorStatus::default() })
    }

    /// The decision of a limit without a rule: one that came with the descriptor, or a limit of 0.
    pub(super) fn of_bucket(
        requests: u32,
        unit: LimitUnit,
        fits: bool,
        remaining: u64,
        reset: Span,
        hits: u64,
    ) -> Self {
        let limit = RateLimit { requests_per_unit: requests, unit: unit::number(unit), name: String::new() };
        let quota = Some((u64::from(requests), Span::from_secs(unit.secs())));
        Self { policy: OVERRIDE.to_owned(), quota, ..Self::limited(limit, !fits, remaining, reset, hits) }
    }

    /// The decision of a rule. A call that charges nothing (`is_check_only`) is over the limit if nothing is left.
    pub(super) fn of_ruling(ruling: Ruling, hits: u64, now: Moment, is_check_only: bool) -> Self {
        let Some(figures) = ruling.figures() else { return Self::without_limit() };
        let is_enforced = !ruling.is_observed();
        let is_over = ruling.decision.verdict.is_refusal() || is_check_only && is_enforced && figures.remaining == 0;
        let wait = ruling.decision.verdict.retry_after(now);
        let reset = if is_over && !wait.is_zero() { wait } else { figures.clear };
        let reset = if reset.is_zero() { figures.window.unwrap_or(Span::ZERO) } else { reset };
        let remaining = if is_over { 0 } else { figures.remaining };
        let limit = RateLimit {
            requests_per_unit: u32::try_from(figures.quota).unwrap_or(u32::MAX),
            unit: figures.window.map_or(0, |window| unit::of_secs(window.as_secs_ceil())),
            name: figures.policy.to_owned(),
        };
        Self { ruling: Some(ruling), ..Self::limited(limit, is_over, remaining, reset, hits) }
    }

    /// The same decision, with the name and mode of a limit from a file.
    pub(super) fn of_leaf(mut self, leaf: &LimitLeaf) -> Self {
        if let Some(limit) = &mut self.status.current_limit {
            limit.name = leaf.limit.name.clone().unwrap_or_default();
        }
        self.is_quota = leaf.is_quota;
        if self.ruling.is_none() {
            self.policy.clone_from(&leaf.path);
        }
        self
    }

    /// The state of the limit, for an assignment of the quota service.
    pub(super) fn quota_figures(&self) -> QuotaFigures {
        let Some(figures) = self.ruling.as_ref().filter(|ruling| !ruling.is_observed()).and_then(Ruling::figures)
        else {
            return QuotaFigures::NoLimit;
        };
        match figures.window {
            Some(_) if self.is_over() => QuotaFigures::UsedUp(self.reset),
            Some(window) => QuotaFigures::Limit { quota: figures.quota, window },
            None => QuotaFigures::NoLimit,
        }
    }

    /// Whether the descriptor is over its limit.
    pub(super) fn is_over(&self) -> bool {
        self.status.code == OVER_LIMIT
    }

    /// The state of the limit for the headers. None if its rule has `headers = false`.
    fn standing(&self) -> Option<LimitStatus<'_>> {
        let remaining = u64::from(self.status.limit_remaining);
        if let Some(ruling) = &self.ruling {
            return Some(LimitStatus { remaining, ..ruling.standing()? });
        }
        let (quota, window) = self.quota?;
        let (reset, clear) = if self.is_over() { (self.reset, self.reset) } else { (Span::ZERO, self.reset) };
        Some(LimitStatus { policy: &self.policy, quota, window: Some(window), unit: None, remaining, reset, clear })
    }
}

/// The headers for the client: those of the strictest limit, and `retry-after` if the request is over the limit. Envoy
/// itself can add `x-ratelimit-*`, so those are left out.
pub(super) fn headers(judgements: &[Judgement], is_over: bool) -> Vec<HeaderValue> {
    let limited = judgements.iter().filter(|judgement| judgement.status.current_limit.is_some());
    let key = |judgement: &&Judgement| (!judgement.is_over() || judgement.is_quota, judgement.status.limit_remaining);
    let Some(strictest) = limited.min_by_key(key) else { return Vec::new() };
    let mut headers = Vec::new();
    let mut push = |key: &str, value: String| headers.push(HeaderValue { key: key.to_owned(), value });
    if let Some(standing) = strictest.standing() {
        limit_status::write_fields(standing, is_over, |field, value| {
            if matches!(field, Field::Policy | Field::Limit) {
                push(field.as_str(), String::from_utf8_lossy(value).into_owned());
            }
        });
    }
    if is_over {
        let over = judgements.iter().filter(|judgement| judgement.is_over());
        let longest = over.map(|judgement| judgement.reset).max().unwrap_or(Span::ZERO);
        push("retry-after", longest.as_secs_ceil().max(1).to_string());
    }
    headers
}

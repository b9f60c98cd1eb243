//! The limit of a rule: exactly one of `budget`, `rate`, `bucket`, `window`, `in_flight` and `legacy`. This module
//! declares their tables and converts each to a [`Limit`] of the core; `legacy` is converted to one or two of the
//! others.

use tollgate_core::limit::{Bucket, Budget, Legacy, Limit, LimitError, Rate, Window};
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use toml::Spanned;
use toml::de::DeValue;

use super::error::ErrorCollector;
use super::shape::Shape;
use super::table::{Located, Value, table};
use super::value::{Millionths, PerTime, PositiveSpan, WholeNumber};

table! {
    /// CPU-seconds per second. Credit regenerates at a constant rate, and each request is charged its measured cost. A
    /// key in debt is not admitted until the debt is repaid.
    struct BudgetTable {
        /// Regeneration rate as a share of the cores of all backends together: 0.1 of 4 cores is 0.4 CPU-seconds per
        /// second. Either this or `cores`.
        share: Millionths where ..=1_000_000 =>
            "a share is a part of the whole, at most 1: write `cores` for CPU-seconds per second",
        /// Regeneration rate in CPU-seconds per second. Either this or `share`.
        cores: Millionths,
        /// Maximum credit, as a duration of CPU time.
        burst: Span = required,
    }
}

table! {
    /// Requests per time, with a burst.
    struct RateTable {
        /// Average rate of admitted requests.
        rate: PerTime = required,
        /// Number of requests that can be admitted at once.
        burst: WholeNumber<u64> = required,
    }
}

table! {
    /// A leaky bucket: each request adds one, and the bucket drains in steps.
    struct BucketTable {
        /// Capacity of the bucket, in requests.
        size: WholeNumber<u32> = required,
        /// Number of requests that drain per step.
        drip: WholeNumber<u32> = "1",
        /// Time between two steps.
        every: PositiveSpan = "\"1s\"",
    }
}

table! {
    /// Maximum number of requests in a sliding window.
    struct WindowTable {
        /// Maximum number of requests in any window.
        max: WholeNumber<u32> = required,
        /// Length of the window.
        per: PositiveSpan = required,
        /// Maximum number of requests in any window during `warmup`. Default: no limit during `warmup`.
        ceiling: WholeNumber<u32>,
    }
}

table! {
    /// Maximum number of requests in flight.
    struct InFlightTable {
        /// Maximum number of requests of one key in flight.
        max: WholeNumber<u32> = required,
    }
}

table! {
    /// A limit in the style of other limiters: a number of requests per duration, a minimum interval, or both.
    struct LegacyTable {
        /// Number of requests per `duration`.
        max: WholeNumber<u32>,
        /// The period of `max`.
        duration: Span,
        /// Minimum time between two requests.
        min_interval: Span,
        /// Whether `min_interval` is enforced beside `max` and `duration`. Sharkey does not: there, `max` requests may
        /// come at once, and `min_interval` only determines how many of them come back at a time. Write `false` for
        /// that.
        enforce_interval: bool = "true",
    }
}

/// `in_flight = 4`, or `in_flight = { max = 4 }`.
pub(crate) enum InFlightMax {}

impl Value for InFlightMax {
    type Parsed = u32;

    fn shape() -> Shape {
        Shape::Either(vec![WholeNumber::<u32>::shape(), InFlightTable::shape()])
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<u32> {
        match value.get_ref() {
            DeValue::Table(_) => InFlightTable::read(value, errors)?.max.map(|max| max.value),
            _ => WholeNumber::<u32>::read(value, errors),
        }
    }
}

/// Minimum burst of a budget: less than this does not pay for one request.
const BURST_MIN: Span = Span::from_millis(1);

impl Located<BudgetTable> {
    /// The budget. `cores` are those of all backends together, of which `share` is a part.
    pub(super) fn limit(&self, cores: Cores, errors: &mut ErrorCollector) -> Option<Limit> {
        let table = &self.value;
        let millionths = match (&table.share, &table.cores) {
            (Some(share), Some(_)) => {
                return errors.refuse(&share.span, "a budget has `share` or `cores`, not both: leave one out");
            }
            (None, None) if table.written.has("share") || table.written.has("cores") => return None,
            (None, None) => {
                errors.missing(
                    &self.span,
                    "a budget needs `share` or `cores`: write `share = 0.1` for a tenth of the backend",
                );
                return None;
            }
            (Some(share), None) => {
                let millionths = (u64::from(share.value) * u64::from(cores.as_milli())).div_ceil(1000);
                u32::try_from(millionths).unwrap_or(u32::MAX)
            }
            (None, Some(cores)) => cores.value,
        };
        let burst = table.burst.as_ref()?;
        if burst.value < BURST_MIN {
            let message = "a burst below 1ms of CPU time is less than one request's toll: write a longer one";
            return errors.refuse(&burst.span, message);
        }
        fit(Budget::new(millionths, burst.value), self, errors).map(Limit::Budget)
    }
}

impl Located<RateTable> {
    pub(super) fn limit(&self, errors: &mut ErrorCollector) -> Option<Limit> {
        let (rate, burst) = (self.value.rate.as_ref()?, self.value.burst.as_ref()?);
        fit(Rate::new(rate.value.count, rate.value.period, burst.value), self, errors).map(Limit::Rate)
    }
}

impl Located<BucketTable> {
    pub(super) fn limit(&self, errors: &mut ErrorCollector) -> Option<Limit> {
        let size = self.value.size.as_ref()?.value;
        fit(Bucket::new(size, self.value.drip.value, self.value.every.value), self, errors).map(Limit::Bucket)
    }
}

impl Located<WindowTable> {
    pub(super) fn limit(&self, errors: &mut ErrorCollector) -> Option<Limit> {
        let (max, per) = (self.value.max.as_ref()?.value, self.value.per.as_ref()?.value);
        if let Some(ceiling) = self.value.ceiling.as_ref().filter(|ceiling| ceiling.value < max) {
            let message = format!("the ceiling {} is below max, {max}: write at least {max}", ceiling.value);
            return errors.refuse(&ceiling.span, message);
        }
        let ceiling = self.value.ceiling.as_ref().map(|ceiling| ceiling.value);
        fit(Window::new(max, per, ceiling), self, errors).map(Limit::Window)
    }
}

impl Located<LegacyTable> {
    /// One limit, or two that both apply: a bucket for `max` and `duration`, and a rate for `min_interval`. Empty after
    /// an error.
    pub(super) fn limits(&self, errors: &mut ErrorCollector) -> Vec<Limit> {
        let LegacyTable { max, duration, min_interval, enforce_interval, written } = &self.value;
        match (max, duration) {
            (Some(max), None) if !written.has("duration") => {
                errors.missing(&max.span, "`max` needs `duration` beside it: write `duration = \"5s\"`");
            }
            (None, Some(duration)) if !written.has("max") => {
                errors.missing(&duration.span, "`duration` needs `max` beside it: write `max = 10`");
            }
            (None, None) if !["max", "duration", "min_interval"].iter().any(|key| written.has(key)) => {
                errors
                    .missing(&self.span, "a legacy limit needs `max` and `duration`, or `min_interval`, or all three");
            }
            _ => {}
        }
        let quota = max.as_ref().zip(duration.as_ref());
        let quota = quota.and_then(|(max, duration)| Some((max.value, nonzero_legacy(duration, errors)?)));
        let min_interval = min_interval.as_ref().and_then(|interval| nonzero_legacy(interval, errors));
        if quota.is_none() && min_interval.is_none() {
            return Vec::new();
        }
        let limits = Legacy { quota, min_interval, is_spaced: enforce_interval.value }.limits();
        fit(limits, self, errors).map(Iterator::collect).unwrap_or_default()
    }
}

/// A duration of a legacy limit. Reports 0, which means no limit in Sharkey.
fn nonzero_legacy(span: &Located<Span>, errors: &mut ErrorCollector) -> Option<Span> {
    if span.value.is_zero() {
        let message = "must not be 0: for no limit, which 0 is in Sharkey, leave the key or the rule out";
        return errors.refuse(&span.span, message);
    }
    Some(span.value)
}

/// The limit, escalation or other value that the core has made from values of the file. Reports at `place` if the core
/// refused to make it: the values are valid on their own, but not in combination.
pub(super) fn fit<T, P>(made: Result<T, LimitError>, place: &Located<P>, errors: &mut ErrorCollector) -> Option<T> {
    let message = match made {
        Ok(made) => return Some(made),
        Err(LimitError::Zero) => "no value of a limit may be 0",
        Err(LimitError::TooFine) => "this rate is more per nanosecond than can be represented: write a lower rate",
        Err(LimitError::TooLong) => {
            "a full burst would take longer than 584 years to regenerate: write a higher rate or a smaller burst"
        }
        Err(LimitError::CeilingBelowMax) => "the upper bound is below the lower: write a larger one",
        Err(LimitError::LogTooLong) => {
            "a window stores at most 65535 requests: write a smaller `max` and `ceiling`, or use `rate`"
        }
    };
    errors.refuse(&place.span, message)
}

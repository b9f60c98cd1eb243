//! The limit of a rule: exactly one of budget, rate, bucket, window, in_flight and legacy.

use std::num::{NonZeroU32, NonZeroU64};

use tollgate_core::limit::{Bucket, Budget, InFlight, Legacy, Limit, LimitError, Rate, Window};
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use toml::Spanned;
use toml::de::DeValue;

use super::fault::Collector;
use super::shape::Shape;
use super::table::{Placed, Value, table};
use super::value::{Millionths, PerTime};

table! {
    /// CPU-seconds per second: credit comes back steadily and is spent by what requests really cost. Debt is repaid before
    /// the next request is let through.
    struct BudgetTable {
        /// How fast credit comes back, as a part of the cores of all backends together: 0.1 of 4 cores is 0.4 CPU-seconds per second. Either this or `cores`.
        share: Millionths,
        /// How fast credit comes back, in CPU-seconds per second. Either this or `share`.
        cores: Millionths,
        /// How much credit can be saved up, as a duration of CPU time.
        burst: Span = required,
    }
}

table! {
    /// So many requests per time, with a burst.
    struct RateTable {
        /// How many requests per time are let through on average.
        rate: PerTime = required,
        /// How many requests may come at once.
        burst: NonZeroU64 = required,
    }
}

table! {
    /// A bucket that each request fills by one and that leaks at fixed times.
    struct BucketTable {
        /// How many requests the bucket holds.
        size: NonZeroU32 = required,
        /// How many requests leak out at a time.
        drip: NonZeroU32 = "1",
        /// The time between two drips.
        every: Span = "\"1s\"",
    }
}

table! {
    /// At most so many requests in any window of time.
    struct WindowTable {
        /// How many requests are let through in any window.
        max: NonZeroU32 = required,
        /// How long the window is.
        per: Span = required,
        /// How many requests are let through while `warmup` lasts: a limit that nothing lifts. Without it, none applies then.
        ceiling: NonZeroU32,
    }
}

table! {
    /// At most so many requests at work at once.
    struct InFlightTable {
        /// How many requests of one key may be at work at once.
        max: NonZeroU32 = required,
    }
}

table! {
    /// A limit in the older style: so many per duration, so far apart, or both.
    struct LegacyTable {
        /// How many requests are let through per `duration`.
        max: NonZeroU32,
        /// The time that `max` is for.
        duration: Span,
        /// The least time between two requests.
        min_interval: Span,
        /// Whether `min_interval` is enforced beside `max` and `duration`. Sharkey does not: there, `max` requests may come at once, and `min_interval` only
        /// determines how many of them come back at a time. Write `false` for that.
        enforce_interval: bool = "true",
    }
}

/// `in_flight = 4`, or `in_flight = { max = 4 }`.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightMax(NonZeroU32);

impl Value for InFlightMax {
    fn shape() -> Shape {
        Shape::Either(vec![NonZeroU32::shape(), InFlightTable::shape()])
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(_) => InFlightTable::read(value, faults)?.max.map(|max| Self(max.value)),
            _ => NonZeroU32::read(value, faults).map(Self),
        }
    }
}

/// A budget below this is less than the price of any request.
const BURST_MIN: Span = Span::from_millis(1);
const MILLION: u64 = 1_000_000;

impl Placed<BudgetTable> {
    /// The budget of a backend with these cores.
    pub(super) fn limit(&self, cores: Cores, faults: &mut Collector) -> Option<Limit> {
        let table = &self.value;
        let millionths = match (&table.share, &table.cores) {
            (Some(share), Some(_)) => {
                faults.fault(&share.span, "a budget has `share` or `cores`, not both: leave one out");
                return None;
            }
            (None, None) if table.written.has("share") || table.written.has("cores") => return None,
            (None, None) => {
                faults.missing(
                    &self.span,
                    "a budget needs `share` or `cores`: write `share = 0.1` for a tenth of the backend",
                );
                return None;
            }
            (Some(share), None) if u64::from(share.value.0) > MILLION => {
                faults.fault(
                    &share.span,
                    "a share is a part of the whole, at most 1: write `cores` for CPU-seconds per second",
                );
                return None;
            }
            (Some(share), None) => {
                let millionths = (u64::from(share.value.0) * u64::from(cores.as_milli())).div_ceil(1000);
                u32::try_from(millionths).unwrap_or(u32::MAX)
            }
            (None, Some(cores)) => cores.value.0,
        };
        let burst = table.burst.as_ref()?;
        if burst.value < BURST_MIN {
            faults.fault(
                &burst.span,
                "a burst below 1ms of CPU time is less than one request's toll: write a longer one",
            );
            return None;
        }
        fit(Budget::new(millionths, burst.value), self, faults).map(Limit::Budget)
    }
}

impl Placed<RateTable> {
    pub(super) fn limit(&self, faults: &mut Collector) -> Option<Limit> {
        let (rate, burst) = (self.value.rate.as_ref()?, self.value.burst.as_ref()?);
        fit(Rate::new(rate.value.count, rate.value.period, burst.value.get()), self, faults).map(Limit::Rate)
    }
}

impl Placed<BucketTable> {
    pub(super) fn limit(&self, faults: &mut Collector) -> Option<Limit> {
        let every = nonzero(&self.value.every, faults);
        let size = self.value.size.as_ref()?.value.get();
        fit(Bucket::new(size, self.value.drip.value.get(), every?), self, faults).map(Limit::Bucket)
    }
}

impl Placed<WindowTable> {
    pub(super) fn limit(&self, faults: &mut Collector) -> Option<Limit> {
        let per = nonzero(self.value.per.as_ref()?, faults);
        let max = self.value.max.as_ref()?.value.get();
        if let Some(ceiling) = self.value.ceiling.as_ref().filter(|ceiling| ceiling.value.get() < max) {
            let message = format!("the ceiling {} is below max, {max}: write at least {max}", ceiling.value);
            faults.fault(&ceiling.span, message);
            return None;
        }
        let ceiling = self.value.ceiling.as_ref().map(|ceiling| ceiling.value.get());
        fit(Window::new(max, per?, ceiling), self, faults).map(Limit::Window)
    }
}

impl Placed<InFlightMax> {
    pub(super) fn limit(&self, faults: &mut Collector) -> Option<Limit> {
        fit(InFlight::new(self.value.0.get()), self, faults).map(Limit::InFlight)
    }
}

impl Placed<LegacyTable> {
    /// One limit, or two that hold at once.
    pub(super) fn limits(&self, faults: &mut Collector) -> Vec<Limit> {
        let LegacyTable { max, duration, min_interval, enforce_interval, written } = &self.value;
        let quota = match (max, duration) {
            (Some(max), Some(duration)) => nonzero_legacy(duration, faults).map(|duration| (max.value.get(), duration)),
            (Some(_), None) if written.has("duration") => return Vec::new(),
            (Some(max), None) => {
                faults.missing(&max.span, "`max` needs `duration` beside it: write `duration = \"5s\"`");
                return Vec::new();
            }
            (None, Some(_)) if written.has("max") => return Vec::new(),
            (None, Some(duration)) => {
                faults.missing(&duration.span, "`duration` needs `max` beside it: write `max = 10`");
                return Vec::new();
            }
            (None, None) if written.has("max") || written.has("duration") || written.has("min_interval") => None,
            (None, None) => {
                faults
                    .missing(&self.span, "a legacy limit needs `max` and `duration`, or `min_interval`, or all three");
                return Vec::new();
            }
        };
        let apart = min_interval.as_ref().map(|interval| nonzero_legacy(interval, faults));
        if apart == Some(None) || (quota.is_none() && apart.is_none()) {
            return Vec::new();
        }
        let is_spaced = enforce_interval.value;
        let limits = Legacy { quota, min_interval: apart.flatten(), is_spaced }.limits();
        fit(limits, self, faults).map(Iterator::collect).unwrap_or_default()
    }
}

/// A duration of a legacy limit, where 0 means no limit in Sharkey.
fn nonzero_legacy(span: &Placed<Span>, faults: &mut Collector) -> Option<Span> {
    if span.value.is_zero() {
        faults.fault(&span.span, "must not be 0: for no limit, which 0 is in Sharkey, leave the key or the rule out");
        return None;
    }
    Some(span.value)
}

/// A duration that must not be 0.
pub(super) fn nonzero(span: &Placed<Span>, faults: &mut Collector) -> Option<Span> {
    if span.value.is_zero() {
        faults.fault(&span.span, "must not be 0: write a duration such as \"1s\"");
        return None;
    }
    Some(span.value)
}

/// Reports why figures that are each right do not make a limit together.
pub(super) fn fit<T, P>(made: Result<T, LimitError>, place: &Placed<P>, faults: &mut Collector) -> Option<T> {
    let message = match made {
        Ok(made) => return Some(made),
        Err(LimitError::Zero) => "no figure of a limit may be 0",
        Err(LimitError::TooFine) => "these figures allow more per nanosecond than can be counted: write a lower rate",
        Err(LimitError::TooLong) => {
            "a full burst would take longer than 584 years to come back: write a higher rate or a smaller burst"
        }
        Err(LimitError::CeilingBelowMax) => "the upper bound is below the lower: write a larger one",
        Err(LimitError::LogTooLong) => {
            "a window remembers at most 65535 requests: write a smaller `max` and `ceiling`, or use `rate`"
        }
    };
    faults.fault(&place.span, message);
    None
}

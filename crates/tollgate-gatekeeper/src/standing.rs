//! Where a caller stands with a limit, in the words of rate-limit headers.

use core::iter;

use tollgate_core::limit::{Limit, LimitInfo};
use tollgate_core::time::Span;
use tollgate_wire::rate_limit_headers::{Standing, write_limits, write_number, write_policies, write_seconds};

/// A limit in the words of rate-limit headers: so much per window.
pub fn of<'a>(policy: &'a str, limit: &Limit, info: LimitInfo) -> Standing<'a> {
    let (quota, window, unit) = match limit {
        Limit::Budget(budget) => {
            let (millionths, burst) = budget.figures();
            let refill = u128::from(burst.as_nanos()) * 1_000_000 / u128::from(millionths);
            let refill = Span::from_nanos(u64::try_from(refill).unwrap_or(u64::MAX));
            (burst.as_nanos() / 1_000_000, Some(refill), Some("cpu-ms"))
        }
        Limit::Rate(rate) => {
            let (count, period, burst) = rate.figures();
            let refill = u128::from(period.as_nanos()) * u128::from(burst) / u128::from(count);
            (burst, Some(Span::from_nanos(u64::try_from(refill).unwrap_or(u64::MAX))), None)
        }
        Limit::Bucket(bucket) => {
            let (size, drip, every) = bucket.figures();
            (u64::from(size), Some(every.times(u64::from(size.div_ceil(drip)))), None)
        }
        Limit::Window(window) => (u64::from(window.figures().0), Some(window.figures().1), None),
        Limit::InFlight(in_flight) => (u64::from(in_flight.max()), None, Some("concurrent-requests")),
    };
    Standing { policy, quota, window, unit, remaining: info.remaining, reset: info.reset, clear: info.clear }
}

/// Writes the header fields that tell a client where it stands: their names in lower case, and their values.
pub fn write_fields(standing: Standing<'_>, is_refusal: bool, mut push: impl FnMut(&'static str, &[u8])) {
    let mut out = Vec::with_capacity(64);
    let mut field = |name: &'static str, write: &dyn Fn(&mut Vec<u8>)| {
        out.clear();
        write(&mut out);
        push(name, &out);
    };
    field("ratelimit-policy", &|out| write_policies(out, iter::once(standing)));
    field("ratelimit", &|out| write_limits(out, iter::once(standing)));
    field("x-ratelimit-remaining", &|out| write_number(out, standing.remaining));
    field("x-ratelimit-clear", &|out| write_seconds(out, standing.clear));
    if is_refusal {
        field("x-ratelimit-reset", &|out| write_seconds(out, standing.reset));
    }
}

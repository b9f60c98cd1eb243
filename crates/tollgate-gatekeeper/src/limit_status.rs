//! Converts the state of a limit to rate-limit headers. The gate, the doors and the tower layer send them to clients.

use tollgate_core::limit::{Limit, LimitInfo};
use tollgate_core::time::Span;
use tollgate_wire::decimal;
use tollgate_wire::rate_limit_headers::{LimitStatus, write_limit, write_policy, write_seconds};

/// The limit of the rule `policy` as a quota per window, with the state `info`. The window is the time in which an
/// exhausted quota is refilled.
pub fn of<'a>(policy: &'a str, limit: &Limit, info: LimitInfo) -> LimitStatus<'a> {
    let (quota, window, unit) = match limit {
        Limit::Budget(budget) => {
            let (_, burst) = budget.parameters();
            (burst.as_nanos() / 1_000_000, Some(budget.time_of(burst)), Some("cpu-ms"))
        }
        Limit::Rate(rate) => {
            let (count, period, burst) = rate.parameters();
            let refill = u128::from(period.as_nanos()) * u128::from(burst) / u128::from(count);
            (burst, Some(Span::from_nanos(u64::try_from(refill).unwrap_or(u64::MAX))), None)
        }
        Limit::Bucket(bucket) => {
            let (size, drip, every) = bucket.parameters();
            (u64::from(size), Some(every.times(u64::from(size.div_ceil(drip)))), None)
        }
        Limit::Window(window) => (u64::from(window.parameters().0), Some(window.parameters().1), None),
        Limit::InFlight(in_flight) => (u64::from(in_flight.max()), None, Some("concurrent-requests")),
    };
    LimitStatus { policy, quota, window, unit, remaining: info.remaining, reset: info.reset, clear: info.clear }
}

tollgate_core::named_enum! {
    /// A rate-limit header field. Its name is in lower case.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Field {
        /// The policy; the same in every response.
        Policy = "ratelimit-policy",
        /// The remaining quota, and the time until more is available.
        Limit = "ratelimit",
        /// The remaining quota.
        Remaining = "x-ratelimit-remaining",
        /// The time until the full quota is available.
        Clear = "x-ratelimit-clear",
        /// The time until one more request fits.
        Reset = "x-ratelimit-reset",
    }
}

/// Passes all fields with their values to `push`. Only a refusal has [`Field::Reset`].
pub fn write_fields(status: LimitStatus<'_>, is_refusal: bool, mut push: impl FnMut(Field, &[u8])) {
    let mut out = policy(status);
    push(Field::Policy, &out);
    write_changing_fields(&mut out, status, is_refusal, push);
}

/// The value of the policy field, which is the same in every response.
pub fn policy(status: LimitStatus<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    write_policy(&mut out, status);
    out
}

/// Passes the fields that differ between responses to `push`. `out` is a buffer for their values.
pub fn write_changing_fields(
    out: &mut Vec<u8>,
    status: LimitStatus<'_>,
    is_refusal: bool,
    mut push: impl FnMut(Field, &[u8]),
) {
    let mut field = |field: Field, write: &dyn Fn(&mut Vec<u8>)| {
        out.clear();
        write(out);
        push(field, out);
    };
    field(Field::Limit, &|out| write_limit(out, status));
    field(Field::Remaining, &|out| decimal::put(out, status.remaining));
    field(Field::Clear, &|out| write_seconds(out, status.clear));
    if is_refusal {
        field(Field::Reset, &|out| write_seconds(out, status.reset));
    }
}

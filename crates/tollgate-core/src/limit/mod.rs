//! The five kinds of limits that a rule can set for each of its keys.
//!
//! A limit is a pure function on a [`Record`]: it checks whether there is room for a toll, and charges the
//! toll if the caller decides to. The check changes nothing, so a refusal costs nothing, and several limits
//! can be checked before any is charged.

mod bucket;
mod budget;
mod factor;
mod gcra;
mod in_flight;
mod legacy;
mod rate;
mod window;

pub use bucket::Bucket;
pub use budget::Budget;
pub use factor::Factor;
pub use in_flight::InFlight;
pub use legacy::Legacy;
pub use rate::Rate;
pub use window::Window;

use gcra::FineTime;

use crate::record::Record;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// One limit, of one of five kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// CPU-seconds per second. The credit may become negative.
    Budget(Budget),
    /// A number of requests per period, with a burst.
    Rate(Rate),
    /// A bucket that leaks in whole drips.
    Bucket(Bucket),
    /// A number of requests in any window of time, and a ceiling, which applies during a warm-up too.
    Window(Window),
    /// A number of concurrent requests.
    InFlight(InFlight),
}

/// A charge, with the data that its refund needs.
///
/// Charges are paid back over time, so a refund that ignores the time of its charge would return credit
/// twice. A refund therefore returns the charge less the amount paid back since. The requests that were not
/// refunded then never exceed the limit, however late refunds arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// When the charge was made.
    pub at: Moment,
    /// [`Limit::mark`] of the record right after the charge.
    pub mark: u64,
}

/// Whether there is room for a toll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room now.
    Now,
    /// There is room from this time on, if nothing else is charged before.
    From(Moment),
    /// There is room when a request in flight ends.
    OnRelease,
    /// The toll is larger than the limit, so waiting does not help.
    Never,
}

impl Room {
    /// The time until there is room, where known.
    pub(crate) fn wait(self, now: Moment) -> Span {
        match self {
            Self::From(moment) => moment.since(now),
            Self::Now | Self::OnRelease | Self::Never => Span::ZERO,
        }
    }
}

/// The state of a limit, as reported to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitInfo {
    /// The remaining quota: requests, or milliseconds of CPU time for a budget.
    pub remaining: u64,
    /// The time until one more request fits; zero if one fits now.
    pub reset: Span,
    /// The time until the full quota is available.
    pub clear: Span,
}

/// The reason why parameters do not make a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// A parameter that must be positive is zero.
    Zero,
    /// The count of the rate, reduced with its period, does not fit in 32 bits.
    TooFine,
    /// A refill would take longer than 584 years.
    TooLong,
    /// The ceiling is below the window's maximum.
    CeilingBelowMax,
    /// A window's log would be longer than 65,535 entries.
    LogTooLong,
}

impl core::fmt::Display for LimitError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::Zero => "a number of the limit is zero",
            Self::TooFine => "the count of the rate, reduced with its period, is larger than 32 bits",
            Self::TooLong => "the limit would take longer than 584 years to refill",
            Self::CeilingBelowMax => "the ceiling is below the maximum of the window",
            Self::LogTooLong => "the window has more than 65,535 entries",
        })
    }
}

impl core::error::Error for LimitError {}

impl Limit {
    /// The number of words in a record of this limit.
    pub fn words(&self) -> usize {
        match self {
            Self::Window(window) => window.log_length(),
            Self::Budget(_) | Self::Rate(_) | Self::Bucket(_) | Self::InFlight(_) => 1,
        }
    }

    /// The time in which a rate or budget returns one unit, as a fraction in lowest terms: nanoseconds per this many
    /// units. `(1, 1)` for other limits.
    pub fn pace(&self) -> (u64, u64) {
        match self {
            Self::Budget(budget) => budget.gcra.pace(),
            Self::Rate(rate) => rate.gcra.pace(),
            Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => (1, 1),
        }
    }

    /// Whether records of this limit use [`Record::aux`].
    pub fn uses_aux(&self) -> bool {
        match self {
            Self::Rate(rate) => rate.gcra.uses_aux(),
            Self::Budget(budget) => budget.gcra.uses_aux(),
            Self::Bucket(bucket) => bucket.uses_aux(),
            Self::Window(_) | Self::InFlight(_) => true,
        }
    }

    /// Whether there is room for `toll`. Changes nothing.
    #[inline]
    pub fn room(&self, record: &impl Record, toll: Toll, now: Moment) -> Room {
        match self {
            Self::Budget(budget) => budget.gcra.room(record, 0, now),
            Self::Rate(rate) if toll.count > rate.parameters().2 => Room::Never,
            Self::Rate(rate) => rate.gcra.room(record, toll.count, now),
            Self::Bucket(bucket) => bucket.room(record, toll.count, now),
            Self::Window(window) => window.room(record, toll.count, now),
            Self::InFlight(in_flight) => in_flight.room(record),
        }
    }

    /// Whether there is room during the warm-up of a rule, in which only the ceilings of windows apply.
    pub fn room_under_ceiling(&self, record: &impl Record, toll: Toll, now: Moment) -> Room {
        match self {
            Self::Window(window) => window.room_under_ceiling(record, toll.count, now),
            Self::Budget(_) | Self::Rate(_) | Self::Bucket(_) | Self::InFlight(_) => Room::Now,
        }
    }

    /// Charges `toll` even without room; the excess becomes debt.
    #[inline]
    pub fn charge(&self, record: &mut impl Record, toll: Toll, now: Moment) {
        match self {
            Self::Budget(budget) => budget.gcra.charge(record, toll.cpu.as_nanos(), now),
            Self::Rate(rate) => rate.gcra.charge(record, toll.count, now),
            Self::Bucket(bucket) => bucket.charge(record, toll.count, now),
            Self::Window(window) => window.charge(record, toll.count, now, now),
            Self::InFlight(in_flight) => in_flight.charge(record, toll.count),
        }
    }

    /// Charges `toll` for a request that is held until `until`. A window counts it at that time; other limits
    /// count it in advance.
    #[inline]
    pub fn charge_held(&self, record: &mut impl Record, toll: Toll, until: Moment, now: Moment) {
        match self {
            Self::Window(window) => window.charge(record, toll.count, until, now),
            _ => self.charge(record, toll, now),
        }
    }

    /// Identifies the newest charge of a record. The mark that was read right after a charge equals the current one as
    /// long as no other charge follows.
    #[inline]
    pub fn mark(&self, record: &impl Record) -> u64 {
        match self {
            Self::Budget(_) | Self::Rate(_) => record.word(0),
            Self::Bucket(bucket) => bucket.mark(record),
            Self::Window(window) => window.mark(record),
            Self::InFlight(_) => 0,
        }
    }

    /// Refunds `toll` for a request that was not forwarded, less the amount paid back since it was `charged`.
    ///
    /// While a rate, budget or bucket holds requests, only its newest charge can be refunded. The others have
    /// fixed times, and a request that took a freed slot between them would be forwarded together with one of
    /// them.
    pub fn refund(&self, record: &mut impl Record, toll: Toll, charged: Charge, now: Moment) {
        match self {
            Self::Budget(budget) => {
                let cpu = toll.cpu.as_nanos();
                budget.gcra.refund(record, (cpu, cpu), charged, now);
            }
            Self::Rate(rate) => rate.gcra.refund(record, (toll.count, 0), charged, now),
            Self::Bucket(bucket) => bucket.refund(record, toll.count, charged, now),
            Self::Window(window) => window.refund(record, toll.count, charged, now),
            Self::InFlight(in_flight) => in_flight.release(record, toll.count),
        }
    }

    /// The time from which a charge of `reserved` is paid back: when it was made, or when a held request was
    /// forwarded.
    pub fn paid_since(&self, reserved: Toll, charged: Charge) -> Moment {
        match self {
            Self::Budget(budget) => budget.gcra.paid_since(reserved.cpu.as_nanos(), charged),
            Self::Rate(rate) => rate.gcra.paid_since(0, charged),
            Self::Bucket(bucket) => bucket.paid_since(charged),
            Self::Window(_) | Self::InFlight(_) => charged.at,
        }
    }

    /// The number of requests in `toll` that a refund at `now` returns at most, rounded up: masters count whole
    /// requests, so this favours the client by less than one request.
    pub fn returnable(&self, toll: Toll, charged: Charge, now: Moment) -> u64 {
        match self {
            Self::Rate(rate) => rate.gcra.returnable(toll.count, charged, now),
            Self::Budget(_) | Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => toll.count,
        }
    }

    /// Takes over debt from another copy of the same key's state, such as that of a master: all debt is paid back no
    /// earlier than `clear`. Only rates and budgets support this.
    pub fn raise(&self, record: &mut impl Record, clear: Moment) {
        match self {
            Self::Budget(_) | Self::Rate(_) => FineTime::raise(record, FineTime::at(clear)),
            Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => {}
        }
    }

    /// The time at which all debt is paid back if there is room for one more request from `next` on and no
    /// earlier. `None` for limits other than rates and budgets.
    pub fn clear_if_next(&self, next: Moment) -> Option<Moment> {
        match self {
            Self::Budget(budget) => Some(budget.gcra.clear_if_next(0, next)),
            Self::Rate(rate) => Some(rate.gcra.clear_if_next(1, next)),
            Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => None,
        }
    }

    /// Settles the request that was `charged` with `reserved` and has cost `actual`.
    pub fn settle(&self, record: &mut impl Record, reserved: Toll, actual: Toll, charged: Charge, now: Moment) {
        match self {
            Self::Budget(budget) if actual.cpu > reserved.cpu => {
                budget.gcra.charge(record, reserved.cpu_missing(actual).as_nanos(), now);
            }
            Self::Budget(budget) => {
                let cpu = (reserved.cpu.as_nanos(), actual.cpu_missing(reserved).as_nanos());
                budget.gcra.refund_surplus(record, cpu, charged, now);
            }
            Self::InFlight(in_flight) => in_flight.release(record, reserved.count),
            Self::Rate(_) | Self::Bucket(_) | Self::Window(_) => {}
        }
    }

    /// Whether charging `toll` changes nothing.
    #[inline]
    pub fn is_free(&self, toll: Toll) -> bool {
        match self {
            Self::Budget(_) => toll.cpu.is_zero(),
            Self::Rate(_) | Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => toll.count == 0,
        }
    }

    /// Tightens `into` so that it never leaves more room than `from`, now or later.
    pub fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        match self {
            Self::Budget(_) | Self::Rate(_) => FineTime::raise(into, FineTime::read(from)),
            Self::Bucket(bucket) => bucket.absorb(into, from),
            Self::Window(window) => window.absorb(into, from),
            Self::InFlight(_) => InFlight::absorb(into, from),
        }
    }

    /// The state to report to the caller.
    #[inline]
    pub fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        match self {
            Self::Budget(budget) => {
                // The remaining quota is the credit in milliseconds of CPU time.
                let info = budget.gcra.info(record, 0, now);
                LimitInfo { remaining: info.remaining / budget::MILLION, ..info }
            }
            Self::Rate(rate) => rate.gcra.info(record, 1, now),
            Self::Bucket(bucket) => bucket.info(record, now),
            Self::Window(window) => window.info(record, now),
            Self::InFlight(in_flight) => in_flight.info(record),
        }
    }

    /// The time from which the record equals a fresh one, so that it can be dropped.
    #[inline]
    pub fn clear_at(&self, record: &impl Record) -> Moment {
        match self {
            Self::Budget(_) | Self::Rate(_) => FineTime::read(record).ceil(),
            Self::Bucket(bucket) => bucket.clear_at(record),
            Self::Window(window) => window.clear_at(record),
            Self::InFlight(in_flight) => in_flight.clear_at(record),
        }
    }
}

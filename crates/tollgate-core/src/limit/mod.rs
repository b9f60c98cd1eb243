//! What a key may have: the five limits.
//!
//! A limit is a pure step on a [`Record`]: is there room for this toll, and if the caller goes ahead, charge it. Looking changes nothing,
//! so a refusal costs nothing, and several limits can be looked at before any is charged.

mod bucket;
mod budget;
mod factor;
mod in_flight;
mod legacy;
mod pace;
mod rate;
mod window;

pub use bucket::Bucket;
pub use budget::Budget;
pub use factor::Factor;
pub use in_flight::InFlight;
pub use legacy::Legacy;
pub use rate::Rate;
pub use window::Window;

use crate::record::Record;
use crate::time::{Moment, Span};
use crate::toll::Toll;

/// One limit, of one of five kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// CPU-seconds per second, with credit that may go below zero.
    Budget(Budget),
    /// So many per period, with a burst.
    Rate(Rate),
    /// A bucket that leaks whole drips.
    Bucket(Bucket),
    /// So many in any window, and a ceiling.
    Window(Window),
    /// So many at once.
    InFlight(InFlight),
}

/// A charge as its refund needs it.
///
/// Time pays charges back, so a refund that ignores when its charge was made returns credit that time has already returned. A refund
/// therefore returns the charge less what the limit has paid back since: in any time, the requests that were not refunded are then at most
/// as many as the limit allows, however late refunds come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// When the charge was made.
    pub at: Moment,
    /// [`Limit::mark`] of the record right after the charge.
    pub mark: u64,
}

/// Whether there is room for a toll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is.
    Now,
    /// From this moment on, if nothing else is charged until then.
    From(Moment),
    /// When a request that is at work ends.
    OnRelease,
    /// The toll is larger than the limit: waiting will not help.
    Never,
}

impl Room {
    /// The time until there is room, where that is known.
    pub(crate) fn wait(self, now: Moment) -> Span {
        match self {
            Self::From(moment) => moment.since(now),
            Self::Now | Self::OnRelease | Self::Never => Span::ZERO,
        }
    }
}

/// What a caller is told about a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitInfo {
    /// What is left now: requests, or milliseconds of CPU time for a budget.
    pub remaining: u64,
    /// Time until one more fits; none when one fits now.
    pub reset: Span,
    /// Time until everything is available again.
    pub clear: Span,
}

/// Why figures do not make a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A figure that must be positive is zero.
    Zero,
    /// More per nanosecond than can be counted.
    TooFine,
    /// It would take longer than 584 years to refill.
    TooLong,
    /// The ceiling is below the most per window.
    CeilingBelowMax,
    /// A window's log would be longer than 65,535 entries.
    LogTooLong,
}

impl Limit {
    /// How many words a record of this limit has.
    pub fn words(&self) -> usize {
        match self {
            Self::Window(window) => window.log_length(),
            Self::Budget(_) | Self::Rate(_) | Self::Bucket(_) | Self::InFlight(_) => 1,
        }
    }

    /// Whether a record of this limit ever has anything in the 32 bits beside its words.
    pub fn uses_aux(&self) -> bool {
        match self {
            Self::Rate(rate) => rate.uses_aux(),
            Self::Budget(budget) => budget.uses_aux(),
            Self::Bucket(bucket) => bucket.uses_aux(),
            Self::Window(_) | Self::InFlight(_) => true,
        }
    }

    /// Whether there is room for `toll`. Changes nothing.
    #[inline]
    pub fn room(&self, record: &impl Record, toll: Toll, now: Moment) -> Room {
        match self {
            Self::Budget(budget) => budget.room(record, now),
            Self::Rate(rate) => rate.room(record, toll.count, now),
            Self::Bucket(bucket) => bucket.room(record, toll.count, now),
            Self::Window(window) => window.room(record, toll.count, now),
            Self::InFlight(in_flight) => in_flight.room(record),
        }
    }

    /// Whether there is room while only ceilings apply.
    pub fn room_under_ceiling(&self, record: &impl Record, toll: Toll, now: Moment) -> Room {
        match self {
            Self::Window(window) => window.room_under_ceiling(record, toll.count, now),
            Self::Budget(_) | Self::Rate(_) | Self::Bucket(_) | Self::InFlight(_) => Room::Now,
        }
    }

    /// Charges `toll`, room or not: what does not fit becomes debt.
    #[inline]
    pub fn charge(&self, record: &mut impl Record, toll: Toll, now: Moment) {
        match self {
            Self::Budget(budget) => budget.charge(record, toll.cpu, now),
            Self::Rate(rate) => rate.charge(record, toll.count, now),
            Self::Bucket(bucket) => bucket.charge(record, toll.count, now),
            Self::Window(window) => window.charge(record, toll.count, now, now),
            Self::InFlight(in_flight) => in_flight.charge(record, toll.count),
        }
    }

    /// Charges `toll` for a request that is held until `until`. A window counts it when it goes on; other limits count it in advance.
    #[inline]
    pub fn charge_held(&self, record: &mut impl Record, toll: Toll, until: Moment, now: Moment) {
        match self {
            Self::Window(window) => window.charge(record, toll.count, until, now),
            _ => self.charge(record, toll, now),
        }
    }

    /// Identifies the newest charge of a record: equal to the mark of a former charge as long as that is the newest.
    #[inline]
    pub fn mark(&self, record: &impl Record) -> u64 {
        match self {
            Self::Budget(_) | Self::Rate(_) => record.word(0),
            Self::Bucket(bucket) => bucket.mark(record),
            Self::Window(window) => window.mark(record),
            Self::InFlight(_) => 0,
        }
    }

    /// Gives `toll` back, for a request that was not forwarded, less what time has paid back since it was `charged`.
    ///
    /// While a rate, budget or bucket holds requests, only its newest charge can be given back: the others have their moments, and a request
    /// that came to stand between them would be forwarded together with one of them.
    pub fn refund(&self, record: &mut impl Record, toll: Toll, charged: Charged, now: Moment) {
        match self {
            Self::Budget(budget) => budget.refund(record, toll.cpu, charged, now),
            Self::Rate(rate) => rate.refund(record, toll.count, charged, now),
            Self::Bucket(bucket) => bucket.refund(record, toll.count, charged, now),
            Self::Window(window) => window.refund(record, toll.count, charged, now),
            Self::InFlight(in_flight) => in_flight.release(record, toll.count),
        }
    }

    /// From when on time has paid back a charge of `reserved`: when it was made, or when its request was forwarded if it was held.
    pub fn paid_since(&self, reserved: Toll, charged: Charged) -> Moment {
        match self {
            Self::Budget(budget) => budget.paid_since(reserved.cpu, charged),
            Self::Rate(rate) => rate.paid_since(charged),
            Self::Bucket(bucket) => bucket.paid_since(charged),
            Self::Window(_) | Self::InFlight(_) => charged.at,
        }
    }

    /// How many of the requests in `toll` a refund at `now` returns at most. Peers that count whole requests round in favour of the caller, by
    /// less than one request.
    pub fn returnable(&self, toll: Toll, charged: Charged, now: Moment) -> u64 {
        match self {
            Self::Rate(rate) => rate.returnable(toll.count, charged, now),
            Self::Budget(_) | Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => toll.count,
        }
    }

    /// Takes over what somebody else knows: all is paid back no earlier than at `clear`. Only for limits that pay back at a pace.
    pub fn raise(&self, record: &mut impl Record, clear: Moment) {
        match self {
            Self::Budget(_) | Self::Rate(_) => pace::Ahead::read(record).max(pace::Ahead::at(clear)).write(record),
            Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => {}
        }
    }

    /// When all is paid back if there is room for one more from `next` on and no earlier. Only for limits that pay back at a pace.
    pub fn clear_if_next(&self, next: Moment) -> Option<Moment> {
        match self {
            Self::Budget(budget) => Some(budget.clear_if_next(next)),
            Self::Rate(rate) => Some(rate.clear_if_next(next)),
            Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => None,
        }
    }

    /// The request that was `charged` with `reserved` has ended and has cost `actual`.
    pub fn settle(&self, record: &mut impl Record, reserved: Toll, actual: Toll, charged: Charged, now: Moment) {
        match self {
            Self::Budget(budget) if actual.cpu > reserved.cpu => {
                budget.charge(record, reserved.cpu_missing(actual), now);
            }
            Self::Budget(budget) => budget.give_back_surplus(record, (reserved.cpu, actual.cpu), charged, now),
            Self::InFlight(in_flight) => in_flight.release(record, reserved.count),
            Self::Rate(_) | Self::Bucket(_) | Self::Window(_) => {}
        }
    }

    /// Whether `toll` is nothing to this limit, so that charging it changes nothing.
    #[inline]
    pub fn is_free(&self, toll: Toll) -> bool {
        match self {
            Self::Budget(_) => toll.cpu.is_zero(),
            Self::Rate(_) | Self::Bucket(_) | Self::Window(_) | Self::InFlight(_) => toll.count == 0,
        }
    }

    /// Worsens `into` until it leaves no more, now or at any later moment, than `from` does.
    pub fn absorb(&self, into: &mut impl Record, from: &impl Record) {
        match self {
            Self::Budget(_) | Self::Rate(_) => pace::Ahead::absorb(into, from),
            Self::Bucket(bucket) => bucket.absorb(into, from),
            Self::Window(window) => window.absorb(into, from),
            Self::InFlight(_) => InFlight::absorb(into, from),
        }
    }

    /// What to tell the caller.
    #[inline]
    pub fn info(&self, record: &impl Record, now: Moment) -> LimitInfo {
        match self {
            Self::Budget(budget) => budget.info(record, now),
            Self::Rate(rate) => rate.info(record, now),
            Self::Bucket(bucket) => bucket.info(record, now),
            Self::Window(window) => window.info(record, now),
            Self::InFlight(in_flight) => in_flight.info(record),
        }
    }

    /// From this moment on the record is as good as a fresh one: dropping it loses nothing.
    #[inline]
    pub fn clear_at(&self, record: &impl Record) -> Moment {
        match self {
            Self::Budget(budget) => budget.clear_at(record),
            Self::Rate(rate) => rate.clear_at(record),
            Self::Bucket(bucket) => bucket.clear_at(record),
            Self::Window(window) => window.clear_at(record),
            Self::InFlight(in_flight) => in_flight.clear_at(record),
        }
    }
}

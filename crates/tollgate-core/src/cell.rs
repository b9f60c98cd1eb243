//! A rate limit whose parameters come with each call: the arithmetic of `CL.THROTTLE`, the command of the Redis module
//! redis-cell. The door for Redis clients answers that command with it.
//!
//! The other limits belong to rules, whose parameters are fixed. Here a caller names the burst, the count and the
//! period each time, so the only state of a key is one moment: the time at which all its charges are paid back. Clients
//! that move from redis-cell must get the same replies as before, so results are rounded as redis-cell rounds them:
//! times up to whole seconds if they have a millisecond part, and the remaining count from whole microseconds.

use crate::record::Record;
use crate::time::Moment;

/// The parameters of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The number of requests that may come at once, less one.
    max_burst: i64,
    /// Nanoseconds in which one request is paid back. Negative if the caller gave a negative count or period.
    interval: i128,
}

/// The error for a count or a period of zero, or for a rate above one request per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroRate;

/// The reply to a call, with the fields in the order of redis-cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// Whether the call is refused.
    pub is_limited: bool,
    /// The number of requests that may come at once: `max_burst + 1`.
    pub limit: i64,
    /// Requests that would be admitted now.
    pub remaining: i64,
    /// Whole seconds until the call would be admitted; -1 if it is admitted, or can never be.
    pub retry_after_secs: i64,
    /// Whole seconds until the whole burst is available again.
    pub reset_after_secs: i64,
    /// Whether a negative quantity gives back more than was charged. The key then has no debt, but redis-cell replies
    /// with an error, and so does the door.
    pub is_overpaid: bool,
}

const NANOS_PER_SEC: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
const NANOS_PER_MICRO: i128 = 1_000;

impl Cell {
    /// `count` requests per `period_secs` seconds, with bursts of `max_burst + 1`.
    pub fn new(max_burst: i64, count: i64, period_secs: i64) -> Result<Self, ZeroRate> {
        let interval =
            (i128::from(period_secs) * NANOS_PER_SEC).checked_div(i128::from(count)).filter(|&nanos| nanos != 0);
        Ok(Self { max_burst, interval: interval.ok_or(ZeroRate)? })
    }

    /// Decides about `quantity` requests at `now`, and charges the record if they are admitted. A quantity of 0 changes
    /// nothing; a negative one refunds.
    pub fn throttle(&self, record: &mut impl Record, quantity: i64, now: Moment) -> CellReply {
        let (reply, spent) = self.evaluate(record.word(0), quantity, now);
        if let Some(spent) = spent.filter(|&spent| spent != record.word(0)) {
            record.set_word(0, spent);
        }
        reply
    }

    /// The reply to a call at `now` for a key whose charges are paid back at `paid_at`, and the new value of `paid_at`
    /// if the call is charged. Both values are nanoseconds since the origin of [`Moment`].
    fn evaluate(&self, paid_at: u64, quantity: i64, now: Moment) -> (CellReply, Option<u64>) {
        let now = i128::from(now.as_nanos());
        let limit = i128::from(self.max_burst) + 1;
        let tolerance = self.interval.saturating_mul(limit);
        let increment = self.interval.saturating_mul(i128::from(quantity));
        let arrival = i128::from(paid_at).max(now);
        let new_arrival = arrival.saturating_add(increment);
        let wait = new_arrival.saturating_sub(tolerance).saturating_sub(now);
        let is_limited = wait > 0;
        // `ttl` is the time until all charges are paid back, after which redis-cell lets the key expire.
        let (retry_after, ttl) = match is_limited {
            true if increment <= tolerance => (wait, arrival - now),
            true => (-NANOS_PER_SEC, arrival - now),
            false => (-NANOS_PER_SEC, new_arrival - now),
        };
        let reply = CellReply {
            is_limited,
            limit: clamp(limit),
            remaining: self.remaining(tolerance.saturating_sub(ttl)),
            retry_after_secs: whole_secs(retry_after),
            reset_after_secs: whole_secs(ttl),
            // redis-cell fails because Redis rejects a negative expiry, except -1 ms, which means no expiry.
            is_overpaid: quantity != 0 && ttl / NANOS_PER_MILLI < -1,
        };
        let spent = new_arrival.clamp(0, i128::from(u64::MAX)) as u64;
        (reply, (!is_limited && quantity != 0).then_some(spent))
    }

    /// How many requests fit into `free` nanoseconds, by whole microseconds and rounded towards zero.
    fn remaining(&self, free: i128) -> i64 {
        if free <= -self.interval {
            return 0;
        }
        let (free, interval) = (free / NANOS_PER_MICRO, self.interval / NANOS_PER_MICRO);
        // The interval of a rate above a million per second is 0 microseconds. redis-cell divides in floating point,
        // which makes the quotient infinite.
        clamp(free.checked_div(interval).unwrap_or(free.signum() * i128::from(i64::MAX)))
    }
}

/// Whole seconds, rounded up, except that a fraction of less than a millisecond is dropped.
fn whole_secs(nanos: i128) -> i64 {
    clamp(nanos / NANOS_PER_SEC + i128::from(nanos % NANOS_PER_SEC >= NANOS_PER_MILLI))
}

fn clamp(number: i128) -> i64 {
    number.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::PlainRecord;

    /// A moment long after the start, so that nothing is cut off at zero.
    const START_MS: u64 = 1_000_000;

    fn figures(reply: CellReply) -> [i64; 5] {
        let CellReply { is_limited, limit, remaining, retry_after_secs, reset_after_secs, .. } = reply;
        [is_limited.into(), limit, remaining, retry_after_secs, reset_after_secs]
    }

    fn call(record: &mut PlainRecord, [burst, count, period, quantity]: [i64; 4], after_ms: u64) -> [i64; 5] {
        let cell = Cell::new(burst, count, period).unwrap();
        figures(cell.throttle(record, quantity, Moment::from_millis(START_MS + after_ms)))
    }

    #[test]
    fn the_example_of_the_readme_of_redis_cell() {
        // CL.THROTTLE user123 15 30 60 1: one request every 2 s, 16 at once.
        let record = &mut PlainRecord::new(1);
        assert_eq!(call(record, [15, 30, 60, 1], 0), [0, 16, 15, -1, 2]);
        for n in 2..=16 {
            assert_eq!(call(record, [15, 30, 60, 1], 0), [0, 16, 16 - n, -1, 2 * n]);
        }
        assert_eq!(call(record, [15, 30, 60, 1], 0), [1, 16, 0, 2, 32]);
        assert_eq!(call(record, [15, 30, 60, 1], 1), [1, 16, 0, 2, 32]);
        assert_eq!(call(record, [15, 30, 60, 1], 2_000), [0, 16, 0, -1, 32]);
    }

    #[test]
    fn times_are_rounded_up_from_a_millisecond_on() {
        let record = &mut PlainRecord::new(1);
        assert_eq!(call(record, [0, 1, 2, 1], 0), [0, 1, 0, -1, 2]);
        for (after_ms, secs) in [(0, 2), (1, 2), (999, 2), (1_000, 1), (1_001, 1), (1_999, 1)] {
            assert_eq!(call(record, [0, 1, 2, 1], after_ms), [1, 1, 0, secs, secs], "after {after_ms} ms");
        }
        // Half a millisecond is no millisecond.
        let cell = Cell::new(0, 1, 2).unwrap();
        let reply = cell.throttle(record, 1, Moment::from_nanos((START_MS + 1_999) * 1_000_000 + 500_000));
        assert_eq!(figures(reply), [1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_quantity_of_zero_looks_and_one_above_the_limit_never_fits() {
        let record = &mut PlainRecord::new(1);
        assert_eq!(call(record, [4, 1, 1, 0], 0), [0, 5, 5, -1, 0]);
        assert_eq!(call(record, [4, 1, 1, 6], 0), [1, 5, 5, -1, 0]);
        assert_eq!(call(record, [4, 1, 1, 5], 0), [0, 5, 0, -1, 5]);
        assert_eq!(call(record, [4, 1, 1, 0], 0), [0, 5, 0, -1, 5]);
        assert_eq!(call(record, [4, 1, 1, 2], 0), [1, 5, 0, 2, 5]);
        assert_eq!(call(record, [4, 1, 1, 6], 0), [1, 5, 0, -1, 5]);
        // A negative quantity gives back.
        assert_eq!(call(record, [4, 1, 1, -2], 0), [0, 5, 2, -1, 3]);
    }

    #[test]
    fn nothing_overflows() {
        assert_eq!(Cell::new(1, 0, 1), Err(ZeroRate));
        assert_eq!(Cell::new(1, 1, 0), Err(ZeroRate));
        // Less than a nanosecond per request.
        assert_eq!(Cell::new(1, i64::MAX, 1), Err(ZeroRate));
        let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
        for burst in extremes {
            for count in extremes {
                for period in extremes {
                    for quantity in extremes {
                        for paid_at in [0, u64::MAX] {
                            let Ok(cell) = Cell::new(burst, count, period) else { continue };
                            let mut record = PlainRecord::new(1);
                            record.set_word(0, paid_at);
                            cell.throttle(&mut record, quantity, Moment::from_millis(START_MS));
                        }
                    }
                }
            }
        }
        let million = &mut PlainRecord::new(1);
        assert_eq!(call(million, [0, 2_000_000, 1, 1], 0), [0, 1, 0, -1, 0]);
        assert_eq!(call(million, [9, 2_000_000, 1, 0], 10), [0, 10, i64::MAX, -1, 0]);
    }
}

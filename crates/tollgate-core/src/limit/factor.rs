//! A factor that loosens or tightens a limit, for some callers of a door or for all requests of a rule. It comes from
//! Sharkey, a social network server whose roles have one.
//!
//! It scales the size and the rate of a limit together: half the factor allows twice as many requests at once and twice
//! as many over time.

use super::{Bucket, Budget, InFlight, Limit, LimitError, Rate, Window};
use crate::time::Span;

/// A factor in thousandths: 1000 leaves a limit unchanged, and a smaller one allows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    thousandths: u32,
}

impl Factor {
    /// A factor in thousandths.
    pub fn new(thousandths: u32) -> Result<Self, LimitError> {
        if thousandths == 0 { Err(LimitError::Zero) } else { Ok(Self { thousandths }) }
    }

    /// A quantity divided by the factor, rounded up.
    fn divide(self, quantity: u64) -> Result<u64, LimitError> {
        let scaled = (u128::from(quantity) * 1000).div_ceil(u128::from(self.thousandths));
        u64::try_from(scaled).map_err(|_| LimitError::TooLong)
    }

    fn divide_count(self, count: u32) -> Result<u32, LimitError> {
        u32::try_from(self.divide(u64::from(count))?).map_err(|_| LimitError::TooLong)
    }

    /// The CPU time to charge to an unscaled budget for a request that costs `cpu`. The effect is that of a budget that
    /// is scaled by this factor, because a budget's record is the time in which its debt is repaid.
    pub fn cost(self, cpu: Span) -> Span {
        self.multiply(cpu).unwrap_or(Span::from_nanos(u64::MAX))
    }

    /// The quantity of a scaled limit that corresponds to `quantity` of the unscaled one: with a factor of one half,
    /// twice as much.
    pub fn quantity(self, quantity: u64) -> u64 {
        self.divide(quantity).unwrap_or(u64::MAX)
    }

    /// A time multiplied by the factor, rounded up.
    fn multiply(self, span: Span) -> Result<Span, LimitError> {
        let scaled = (u128::from(span.as_nanos()) * u128::from(self.thousandths)).div_ceil(1000);
        u64::try_from(scaled).map(Span::from_nanos).map_err(|_| LimitError::TooLong)
    }
}

impl Limit {
    /// This limit scaled by a factor. A window's ceiling does not change.
    pub fn scaled(&self, factor: Factor) -> Result<Self, LimitError> {
        Ok(match self {
            Self::Budget(budget) => {
                let (millionths, burst) = budget.parameters();
                let burst = Span::from_nanos(factor.divide(burst.as_nanos())?);
                Self::Budget(Budget::new(factor.divide_count(millionths)?, burst)?)
            }
            Self::Rate(rate) => {
                let (count, period, burst) = rate.parameters();
                let mut scaled = factor.multiply(period)?;
                if !self.uses_aux() {
                    // A rate whose interval is a whole number of nanoseconds keeps such an interval, so that records of
                    // the one are records of the other.
                    let interval = scaled.as_nanos().div_ceil(count);
                    scaled = Span::from_nanos(interval.checked_mul(count).ok_or(LimitError::TooLong)?);
                }
                Self::Rate(Rate::new(count, scaled, factor.divide(burst)?)?)
            }
            Self::Bucket(bucket) => {
                let (size, drip, every) = bucket.parameters();
                Self::Bucket(Bucket::new(factor.divide_count(size)?, drip, factor.multiply(every)?)?)
            }
            Self::Window(window) => {
                let (max, per, ceiling) = window.parameters();
                let max = factor.divide_count(max)?;
                Self::Window(Window::new(ceiling.map_or(max, |ceiling| max.min(ceiling)), per, ceiling)?)
            }
            Self::InFlight(in_flight) => Self::InFlight(InFlight::new(factor.divide_count(in_flight.max())?)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(limit: Limit, thousandths: u32) -> Limit {
        limit.scaled(Factor::new(thousandths).unwrap()).unwrap()
    }

    #[test]
    fn half_the_factor_allows_twice_as_much_at_once_and_over_time() {
        let bucket = Limit::Bucket(Bucket::new(10, 2, Span::from_secs(1)).unwrap());
        assert_eq!(scaled(bucket, 500), Limit::Bucket(Bucket::new(20, 2, Span::from_millis(500)).unwrap()));
        let rate = Limit::Rate(Rate::new(5, Span::from_secs(60), 10).unwrap());
        assert_eq!(scaled(rate, 500), Limit::Rate(Rate::new(5, Span::from_secs(30), 20).unwrap()));
        let budget = Limit::Budget(Budget::new(400_000, Span::from_secs(30)).unwrap());
        assert_eq!(scaled(budget, 500), Limit::Budget(Budget::new(800_000, Span::from_secs(60)).unwrap()));
    }

    #[test]
    fn a_whole_interval_stays_whole() {
        // 100 ns each; a third of that is no whole number of nanoseconds.
        let rate = Limit::Rate(Rate::new(7, Span::from_nanos(700), 10).unwrap());
        let tight = scaled(rate, 333);
        assert!(!rate.uses_aux() && !tight.uses_aux());
        assert_eq!(tight, Limit::Rate(Rate::new(7, Span::from_nanos(238), 31).unwrap()));
    }

    #[test]
    fn a_large_factor_never_leaves_less_than_one() {
        let bucket = Limit::Bucket(Bucket::new(10, 1, Span::from_secs(1)).unwrap());
        let Limit::Bucket(tight) = scaled(bucket, 1_000_000) else { panic!() };
        assert_eq!(tight.parameters().0, 1);
    }

    #[test]
    fn a_factor_does_not_change_a_ceiling() {
        let window = Limit::Window(Window::new(5, Span::from_secs(10), Some(20)).unwrap());
        let Limit::Window(loose) = scaled(window, 1) else { panic!() };
        assert_eq!(loose.parameters(), (20, Span::from_secs(10), Some(20)));
    }
}

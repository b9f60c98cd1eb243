//! One number that makes a limit looser or tighter: Sharkey's factor.
//!
//! It scales size and rate together, so that half the factor allows twice as much at once and twice as much over time.

use super::{Bucket, Budget, InFlight, Limit, Misfit, Rate, Window};
use crate::time::Span;

/// How dear a limit is, in thousandths: 1000 leaves it as it is, less allows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    thousandths: u32,
}

impl Factor {
    /// A factor in thousandths.
    pub fn new(thousandths: u32) -> Result<Self, Misfit> {
        if thousandths == 0 { Err(Misfit::Zero) } else { Ok(Self { thousandths }) }
    }

    /// A quantity that grows as the factor shrinks, rounded up.
    fn divide(self, quantity: u64) -> Result<u64, Misfit> {
        let scaled = (u128::from(quantity) * 1000).div_ceil(u128::from(self.thousandths));
        u64::try_from(scaled).map_err(|_| Misfit::TooLong)
    }

    fn divide_count(self, count: u32) -> Result<u32, Misfit> {
        u32::try_from(self.divide(u64::from(count))?).map_err(|_| Misfit::TooLong)
    }

    /// A time that shrinks with the factor, rounded up.
    fn multiply(self, span: Span) -> Result<Span, Misfit> {
        let scaled = (u128::from(span.as_nanos()) * u128::from(self.thousandths)).div_ceil(1000);
        u64::try_from(scaled).map(Span::from_nanos).map_err(|_| Misfit::TooLong)
    }
}

impl Limit {
    /// The same limit under a factor. A window's ceiling stays where it is: nothing lifts it.
    pub fn scaled(&self, factor: Factor) -> Result<Self, Misfit> {
        Ok(match self {
            Self::Budget(budget) => {
                let (millionths, burst) = budget.figures();
                let burst = Span::from_nanos(factor.divide(burst.as_nanos())?);
                Self::Budget(Budget::new(factor.divide_count(millionths)?, burst)?)
            }
            Self::Rate(rate) => {
                let (count, period, burst) = rate.figures();
                Self::Rate(Rate::new(count, factor.multiply(period)?, factor.divide(burst)?)?)
            }
            Self::Bucket(bucket) => {
                let (size, drip, every) = bucket.figures();
                Self::Bucket(Bucket::new(factor.divide_count(size)?, drip, factor.multiply(every)?)?)
            }
            Self::Window(window) => {
                let (max, per, ceiling) = window.figures();
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
    fn a_large_factor_never_leaves_less_than_one() {
        let bucket = Limit::Bucket(Bucket::new(10, 1, Span::from_secs(1)).unwrap());
        let Limit::Bucket(tight) = scaled(bucket, 1_000_000) else { panic!() };
        assert_eq!(tight.figures().0, 1);
    }

    #[test]
    fn a_ceiling_is_lifted_by_nothing() {
        let window = Limit::Window(Window::new(5, Span::from_secs(10), Some(20)).unwrap());
        let Limit::Window(loose) = scaled(window, 1) else { panic!() };
        assert_eq!(loose.figures(), (20, Span::from_secs(10), Some(20)));
    }
}

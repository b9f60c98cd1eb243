//! What is usual among several requests, and what is light beside it.
//!
//! The mean of their costs would not do: four assets follow every page, and beside a crowd of assets a page looks dear. So the
//! usual cost is that of the request for which an average moment of CPU time is spent: the dear ones speak for the time they take.

use crate::prediction::Expected;
use crate::time::Span;

/// A request is light if the usual one costs this many times as much.
const LIGHT: u64 = 4;

/// What several requests are expected to cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// The sum, and the sum of squares, in microseconds.
    sum: u64,
    squares: u128,
}

impl Costs {
    /// Costs of which the sum in microseconds, and the sum of squares, are known.
    pub const fn of_sums(sum: u64, squares: u128) -> Self {
        Self { sum, squares }
    }

    /// One more, of this cost.
    pub fn add(&mut self, cost: Span) {
        let micros = micros(cost);
        self.sum = self.sum.saturating_add(micros);
        self.squares = self.squares.saturating_add(u128::from(micros).pow(2));
    }

    /// One less, of the cost with which it was added.
    pub fn remove(&mut self, cost: Span) {
        let micros = micros(cost);
        self.sum = self.sum.saturating_sub(micros);
        self.squares = self.squares.saturating_sub(u128::from(micros).pow(2));
    }

    /// These and those.
    pub(super) fn and(self, other: Self) -> Self {
        Self { sum: self.sum.saturating_add(other.sum), squares: self.squares.saturating_add(other.squares) }
    }

    /// Whether a request of this cost is light beside these, or may be for all that is known.
    pub(super) fn is_light(self, expected: Expected) -> bool {
        u128::from(micros(expected.least)) * u128::from(LIGHT) * u128::from(self.sum) < self.squares
    }
}

/// At least one: no request is free.
fn micros(cost: Span) -> u64 {
    (cost.as_nanos() / 1000).clamp(1, u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn costs(millis: &[u64]) -> Costs {
        let mut costs = Costs::default();
        millis.iter().for_each(|millis| costs.add(Span::from_millis(*millis)));
        costs
    }

    #[test]
    fn a_page_is_light_beside_what_a_crawler_asks_for() {
        assert!(costs(&[300]).is_light(Span::from_millis(20).into()));
        assert!(costs(&[300; 64]).is_light(Span::from_millis(20).into()));
        assert!(!costs(&[300; 64]).is_light(Span::from_millis(100).into()));
    }

    #[test]
    fn a_page_is_not_dear_beside_a_crowd_of_assets() {
        let mut crowd = costs(&[300; 4]);
        (0..100).for_each(|_| crowd.add(Span::from_nanos(500_000)));
        assert!(crowd.is_light(Span::from_millis(20).into()));
    }

    #[test]
    fn nothing_is_light_beside_nothing() {
        assert!(!Costs::default().is_light(Span::ZERO.into()));
    }

    proptest! {
        #[test]
        fn requests_within_a_factor_of_four_are_alike(costs in prop::collection::vec(100u64..400, 1..100)) {
            for cost in &costs {
                prop_assert!(!self::costs(&costs).is_light(Span::from_millis(*cost).into()));
            }
        }

        #[test]
        fn what_was_added_can_be_removed(costs in prop::collection::vec(any::<u64>(), 0..100)) {
            let mut sum = Costs::default();
            costs.iter().for_each(|cost| sum.add(Span::from_nanos(*cost)));
            costs.iter().for_each(|cost| sum.remove(Span::from_nanos(*cost)));
            prop_assert_eq!(sum, Costs::default());
        }
    }
}

//! Translates the `legacy` limits of the settings: a quota per duration, a minimum interval between requests, or both.
//! The social network server Sharkey had them before it had buckets.
//!
//! Sharkey derives a bucket from the three parameters and then ignores the interval: the bucket admits `max`
//! requests at once. Here the interval is a second limit beside the bucket, unless `is_spaced` is false.

use super::{Bucket, Limit, LimitError, Rate};
use crate::time::Span;

/// The parameters as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// The number of requests per duration, and the duration.
    pub quota: Option<(u32, Span)>,
    /// The minimum time between two requests.
    pub min_interval: Option<Span>,
    /// Whether the minimum interval applies beside a quota. If not, it only determines the drip of the bucket.
    pub is_spaced: bool,
}

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The quotient, rounded half up to a whole number of at least 1, as Sharkey does.
fn rounded_quotient(numerator: u128, denominator: u128) -> u64 {
    u64::try_from((2 * numerator + denominator) / (2 * denominator)).unwrap_or(u64::MAX).max(1)
}

impl Legacy {
    /// The limits that these parameters mean. All of them apply.
    pub fn limits(&self) -> Result<impl Iterator<Item = Limit> + use<>, LimitError> {
        let spacing = self.min_interval.filter(|_| self.is_spaced || self.quota.is_none());
        let spacing = spacing.map(|interval| Rate::new(1, interval, 1).map(Limit::Rate)).transpose()?;
        let bucket = self.quota.map(|(max, duration)| self.bucket(max, duration).map(Limit::Bucket)).transpose()?;
        if spacing.is_none() && bucket.is_none() {
            return Err(LimitError::Zero);
        }
        Ok(bucket.into_iter().chain(spacing))
    }

    /// Sharkey's arithmetic, in milliseconds.
    fn bucket(&self, max: u32, duration: Span) -> Result<Bucket, LimitError> {
        if max == 0 || duration.is_zero() {
            return Err(LimitError::Zero);
        }
        let duration_ms = u128::from(duration.as_nanos().div_ceil(NANOS_PER_MILLI));
        let max_wide = u128::from(max);
        // The interval between drips, before it is adapted to a whole number of requests per drip.
        let every_first = match self.min_interval {
            Some(interval) => rounded_quotient(u128::from(interval.as_nanos()), u128::from(NANOS_PER_MILLI)),
            None => rounded_quotient(duration_ms, max_wide),
        };
        let drip = rounded_quotient(max_wide * u128::from(every_first), duration_ms);
        let every = rounded_quotient(duration_ms * u128::from(drip), max_wide);
        Bucket::new(max, u32::try_from(drip).map_err(|_| LimitError::TooFine)?, Span::from_millis(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(quota: (u32, u64), min_interval: Option<u64>) -> (u32, u32, Span) {
        let legacy = Legacy {
            quota: Some((quota.0, Span::from_millis(quota.1))),
            min_interval: min_interval.map(Span::from_millis),
            is_spaced: true,
        };
        match legacy.limits().unwrap().next() {
            Some(Limit::Bucket(bucket)) => bucket.parameters(),
            other => panic!("not a bucket: {other:?}"),
        }
    }

    #[test]
    fn legacy_limits_translate_as_in_sharkey() {
        assert_eq!(bucket_of((10, 5_000), Some(1_000)), (10, 2, Span::from_millis(1_000)));
        assert_eq!(bucket_of((4_096, 2_000), None), (4_096, 2, Span::from_millis(1)));
        assert_eq!(bucket_of((300, 3_600_000), Some(1_000)), (300, 1, Span::from_millis(12_000)));
        // 142.9 ms and 142.5 ms are rounded half up.
        assert_eq!(bucket_of((7, 1_000), None), (7, 1, Span::from_millis(143)));
        assert_eq!(bucket_of((2, 285), None), (2, 1, Span::from_millis(143)));
    }

    #[test]
    fn the_minimum_interval_is_a_separate_limit() {
        let legacy = Legacy {
            quota: Some((10, Span::from_secs(5))),
            min_interval: Some(Span::from_millis(200)),
            is_spaced: true,
        };
        let spacing = legacy.limits().unwrap().nth(1).unwrap();
        assert_eq!(spacing, Limit::Rate(Rate::new(1, Span::from_millis(200), 1).unwrap()));
        let unspaced = Legacy { is_spaced: false, ..legacy };
        assert_eq!(
            unspaced.limits().unwrap().collect::<alloc::vec::Vec<_>>(),
            [legacy.limits().unwrap().next().unwrap()]
        );
        let alone = Legacy { quota: None, min_interval: Some(Span::from_millis(250)), is_spaced: false };
        assert_eq!(alone.limits().unwrap().count(), 1);
        assert!(Legacy { quota: None, min_interval: None, is_spaced: true }.limits().is_err());
    }
}

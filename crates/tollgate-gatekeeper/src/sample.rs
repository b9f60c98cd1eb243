//! Whom to count while more come than are worth counting one by one.
//!
//! Counting somebody by name touches memory that the processor does not have at hand, which takes longer than to refuse them. Nobody can tell on a page
//! whether somebody was refused 81,240 or 81,260 times. So of those who come within a moment the first are counted one by one, and of the
//! others one in thirty-two, by chance, for thirty-two. By chance, because callers who take turns would otherwise be counted always or never.
//! Nothing is decided by such counts: limits and flags have their own.

use core::cell::Cell;

use tollgate_core::time::Moment;

/// A moment is about half a second: so many bits of a time in nanoseconds are not looked at.
const MOMENT_NS_LOG2: u32 = 29;
/// One in so many is counted, for all of them.
const PART: u64 = 32;

/// Who is counted, within one moment after the other. One for each thread.
#[derive(Debug)]
pub struct Sample {
    moment: Cell<u64>,
    passed: Cell<u32>,
    random: Cell<u64>,
}

impl Default for Sample {
    fn default() -> Self {
        Self::new()
    }
}

impl Sample {
    /// How many are counted one by one.
    pub const ONE_BY_ONE: u32 = 512;

    /// Nobody has come yet.
    pub const fn new() -> Self {
        Self { moment: Cell::new(0), passed: Cell::new(0), random: Cell::new(0x9e37_79b9_7f4a_7c15) }
    }

    /// For how many the one who comes now is counted; none if not at all.
    #[inline]
    pub fn times(&self, now: Moment) -> Option<u64> {
        let moment = now.as_nanos() >> MOMENT_NS_LOG2;
        // Only what is later begins anew: who was held for a while comes with the time of its arrival, in between the others.
        if moment > self.moment.get() {
            self.moment.set(moment);
            self.passed.set(0);
        }
        let passed = self.passed.get();
        if passed < Self::ONE_BY_ONE {
            self.passed.set(passed + 1);
            return Some(1);
        }
        // Marsaglia's xorshift: no secret hangs on it.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        (random >> 32).is_multiple_of(PART).then_some(PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_counted_one_by_one() {
        let sample = Sample::new();
        for secs in 0..3 {
            assert!((0..Sample::ONE_BY_ONE).all(|_| sample.times(Moment::from_millis(secs * 1000)) == Some(1)));
        }
    }

    #[test]
    fn of_many_everybody_is_counted_nearly_right_even_if_they_take_turns() {
        for callers in [1, 16, 32, 100] {
            let mut counts = vec![0; callers];
            let sample = Sample::new();
            for _ in 0..20_000 {
                counts.iter_mut().for_each(|count| *count += sample.times(Moment::ZERO).unwrap_or(0));
            }
            for count in counts {
                assert!((16_500..23_500).contains(&count), "{count} of {callers}");
            }
        }
    }

    #[test]
    fn few_of_many_are_looked_at() {
        let sample = Sample::new();
        let looked_at = (0..100_000).filter(|_| sample.times(Moment::ZERO).is_some()).count();
        assert!(looked_at < 10_000, "{looked_at}");
    }

    #[test]
    fn times_that_go_back_and_forth_are_no_way_to_be_looked_at_more_often() {
        let sample = Sample::new();
        let times = (0..100_000).map(|turn| Moment::from_millis(10_000 - turn % 2 * 5000));
        let looked_at = times.filter(|now| sample.times(*now).is_some()).count();
        assert!(looked_at < 10_000, "{looked_at}");
    }
}

//! Whom to count while more come than are worth counting one by one.
//!
//! Counting somebody by name touches memory that the processor does not have at hand, which takes longer than to refuse them. Nobody can tell on a page
//! whether somebody was refused 81,240 or 81,260 times. So of those who come within a moment the first are counted one by one, and of the
//! others one in sixteen, by chance, for sixteen. By chance, because callers who take turns would otherwise be counted always or never.
//! Nothing is decided by such counts: limits and flags have their own.

/// One in so many is counted, for all of them.
const PART: u64 = 16;

/// Who is counted, within one moment after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    passed: u32,
    random: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self::new()
    }
}

impl Sample {
    /// How many are counted one by one.
    pub const ONE_BY_ONE: u32 = 2048;

    /// Nobody has come yet.
    pub const fn new() -> Self {
        Self { passed: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Another moment begins.
    pub fn begin(&mut self) {
        self.passed = 0;
    }

    /// For how many the one who comes now is counted; none if not at all.
    #[inline]
    pub fn times(&mut self) -> Option<u64> {
        if self.passed < Self::ONE_BY_ONE {
            self.passed += 1;
            return Some(1);
        }
        // Marsaglia's xorshift: no secret hangs on it.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32).is_multiple_of(PART).then_some(PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_counted_one_by_one() {
        let mut sample = Sample::new();
        for _ in 0..3 {
            sample.begin();
            assert!((0..Sample::ONE_BY_ONE).all(|_| sample.times() == Some(1)));
        }
    }

    #[test]
    fn of_many_everybody_is_counted_nearly_right_even_if_they_take_turns() {
        for callers in [1, 16, 32, 100] {
            let mut counts = vec![0; callers];
            let mut sample = Sample::new();
            for _ in 0..20_000 {
                counts.iter_mut().for_each(|count| *count += sample.times().unwrap_or(0));
            }
            for count in counts {
                assert!((18_000..22_000).contains(&count), "{count} of {callers}");
            }
        }
    }

    #[test]
    fn few_of_many_are_looked_at() {
        let mut sample = Sample::new();
        let looked_at = (0..100_000).filter(|_| sample.times().is_some()).count();
        assert!(looked_at < 10_000, "{looked_at}");
    }
}

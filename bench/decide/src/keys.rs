//! The keys of the benchmark's decisions: which ones are drawn, and their bytes.

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Uniform.
    Uniform,
    /// Zipf: the n-th most frequent key in proportion to 1/n^0.99.
    Zipf,
}

impl Draw {
    pub(crate) const ALL: [Self; 2] = [Self::Uniform, Self::Zipf];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf 0.99",
        }
    }

    /// `count` draws from keys 0 to `keys`, the same in every run.
    pub(crate) fn draw(self, keys: u32, count: usize) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(1);
        match self {
            Self::Uniform => (0..count).map(|_| random.u32(..keys)).collect(),
            Self::Zipf => {
                let mut sum = 0.0;
                let sums: Vec<f64> = (1..=keys)
                    .map(|rank| {
                        sum += f64::from(rank).powf(-0.99);
                        sum
                    })
                    .collect();
                (0..count)
                    .map(|_| {
                        let point = random.f64() * sum;
                        sums.partition_point(|&sum| sum < point) as u32
                    })
                    .collect()
            }
        }
    }
}

/// The eight bytes of a key. Keys of adjacent rank are not adjacent in memory.
#[inline]
pub(crate) const fn key(number: u32) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

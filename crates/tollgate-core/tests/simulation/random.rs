//! A seeded generator: one seed reproduces any run.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Nanoseconds until the next of `per_second` independent events.
    pub(crate) fn gap_ns(&mut self, per_second: f64) -> u64 {
        (-(1.0 - self.unit()).ln() / per_second * 1e9) as u64
    }

    /// From the standard normal distribution.
    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }

    /// Between two positive numbers, each octave as likely as the next.
    pub(crate) fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        (from.ln() + self.unit() * (to.ln() - from.ln())).exp()
    }
}

//! Compares measured values with the bound of a law, over many seeds.

/// At least this part of the seeds meets the bound of a law.
const MET: f64 = 0.99;

/// This many seeds, or as many times more as `TOLLGATE_SEEDS` says.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let times = std::env::var("TOLLGATE_SEEDS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    0..count * times
}

/// The values that were measured for one law.
pub(crate) struct Sweep {
    law: String,
    bound: f64,
    is_floor: bool,
    /// No value is worse than this, and at least this part of the values meets the bound.
    worst: f64,
    met: f64,
    /// How far beyond the bound each value is, 1 at the bound and 2 at twice the bound; the value; the run it is from.
    all: Vec<(f64, f64, String)>,
}

impl Sweep {
    /// No value is above `bound`.
    pub(crate) fn at_most(law: impl Into<String>, bound: f64) -> Self {
        Self { law: law.into(), bound, is_floor: false, worst: 2.0 * bound, met: MET, all: vec![] }
    }

    /// No value, which is a part of a whole, is below `bound`. Twice the bound is twice the loss.
    pub(crate) fn at_least(law: impl Into<String>, bound: f64) -> Self {
        Self { law: law.into(), bound, is_floor: true, worst: 2.0 * bound - 1.0, met: MET, all: vec![] }
    }

    /// The law is not met yet. No value is worse than `worst`, and at least the part `met` of the values meets the
    /// bound.
    pub(crate) fn not_met(self, worst: f64, met: f64) -> Self {
        Self { worst, met, ..self }
    }

    /// Every value meets the bound.
    pub(crate) fn always(self) -> Self {
        Self { worst: self.bound, met: 1.0, ..self }
    }

    pub(crate) fn add(&mut self, value: f64, run: impl FnOnce() -> String) {
        let beyond = self.beyond(value);
        assert!(value.is_finite(), "{}: no value in {}", self.law, run());
        self.all.push((beyond, value, run()));
    }

    /// Prints the worst value, and returns whether the values keep the bound.
    fn holds(self) -> bool {
        let missed = self.all.iter().filter(|(beyond, ..)| *beyond > 1.0 + 1e-9).count();
        let (beyond, value, run) = self.all.iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("at least one run");
        let bound = if self.is_floor { "at least" } else { "at most" };
        let count = self.all.len();
        let line =
            format!("{}: {bound} {}; worst of {count}: {value:.3} ({run}); {missed} missed", self.law, self.bound);
        print(&line);
        if std::env::var_os("TOLLGATE_MISSES").is_some() {
            let misses = self.all.iter().filter(|(beyond, ..)| *beyond > 1.0 + 1e-9);
            misses.for_each(|(_, value, run)| print(&format!("  missed: {}: {value:.3} ({run})", self.law)));
        }
        let (is_bounded, is_met) =
            (*beyond <= self.beyond(self.worst) + 1e-9, missed as f64 <= (1.0 - self.met) * count as f64);
        if !is_bounded {
            print(&format!("worse than {}: {line}", self.worst));
        }
        if !is_met {
            print(&format!("fewer than {} meet it: {line}", self.met));
        }
        is_bounded && is_met
    }

    fn beyond(&self, value: f64) -> f64 {
        if self.is_floor { (1.0 - value) / (1.0 - self.bound) } else { value / self.bound }
    }
}

/// Checks all laws of a test, and prints each.
pub(crate) fn check(laws: impl IntoIterator<Item = Sweep>) {
    let broken = laws.into_iter().map(Sweep::holds).filter(|holds| !holds).count();
    assert_eq!(broken, 0, "laws are broken, see above");
}

/// The worst seed of every law is part of a test's output.
#[allow(clippy::print_stderr)]
pub(crate) fn print(line: &str) {
    eprintln!("{line}");
}

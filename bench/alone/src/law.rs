//! The law of this benchmark, the bounds that Tollgate must meet: a client alone does not notice the gate.

use crate::figures::Stage;
use serde::Serialize;

/// The law does not apply if the backend alone takes longer than this. It is half of `hold.max`, the longest time that
/// a gate holds a request.
const DIRECT_P99_MS_MAX: f64 = 5000.0;

/// A target compared with the backend alone: medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    /// Throughput, divided by that without a gate.
    pub(crate) throughput: f64,
    /// p99, divided by that without a gate.
    pub(crate) p99: f64,
    /// Requests that were refused or failed, of all rounds.
    pub(crate) lost: u64,
}

/// The outcome for one row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// Within all bounds.
    Holds,
    /// Beyond these bounds.
    Broken(Vec<String>),
    /// The backend alone takes too long for the law to apply.
    Outside,
}

/// Judges one row; `sleeps` is that of the backend.
pub(crate) fn judge(comparison: &Comparison, direct_p99_ms: f64, sleeps: bool, stage: Stage) -> Verdict {
    if direct_p99_ms > DIRECT_P99_MS_MAX {
        return Verdict::Outside;
    }
    let (throughput_min, p99_max) = if sleeps && stage.is_first_second() { (0.75, 5.0) } else { (0.95, 1.25) };
    // The throughput of a burst follows from its slowest request, which the p99 bounds already.
    let throughput_min = if stage.is_burst() { 0.0 } else { throughput_min };
    let Comparison { throughput, p99, lost } = *comparison;
    let mut broken = Vec::new();
    if lost > 0 {
        broken.push(format!("{lost} lost"));
    }
    // Where nothing was served, the ratios are not numbers, which is beyond every bound.
    if throughput.is_nan() || throughput < throughput_min {
        broken.push(format!("throughput {throughput:.2} < {throughput_min}"));
    }
    if p99.is_nan() || p99 > p99_max {
        broken.push(format!("p99 {p99:.2}x > {p99_max}x"));
    }
    if broken.is_empty() { Verdict::Holds } else { Verdict::Broken(broken) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Comparison = Comparison { throughput: 0.97, p99: 1.2, lost: 0 };

    #[test]
    fn each_bound_is_checked() {
        let check = |comparison: Comparison| judge(&comparison, 100.0, false, Stage::Cold);
        assert_eq!(check(GOOD), Verdict::Holds);
        assert_eq!(check(Comparison { lost: 3, ..GOOD }), Verdict::Broken(vec!["3 lost".to_owned()]));
        for bad in [
            Comparison { throughput: 0.94, ..GOOD },
            Comparison { p99: 1.26, ..GOOD },
            Comparison { p99: f64::NAN, ..GOOD },
        ] {
            assert!(matches!(check(bad), Verdict::Broken(parts) if parts.len() == 1), "{bad:?}");
        }
    }

    #[test]
    fn only_a_backend_that_sleeps_has_a_first_second() {
        let slow_start = Comparison { throughput: 0.8, p99: 4.0, lost: 0 };
        for stage in [Stage::ColdFirstSecond, Stage::Burst0s] {
            assert_eq!(judge(&slow_start, 100.0, true, stage), Verdict::Holds);
            assert!(matches!(judge(&slow_start, 100.0, false, stage), Verdict::Broken(_)));
        }
        assert!(matches!(judge(&slow_start, 100.0, true, Stage::Burst3s), Verdict::Broken(_)));
        assert_eq!(judge(&Comparison { throughput: 0.25, ..slow_start }, 100.0, true, Stage::Burst0s), Verdict::Holds);
    }

    #[test]
    fn a_load_that_is_too_much_for_the_backend_is_outside_the_law() {
        assert_eq!(judge(&Comparison { lost: 9, ..GOOD }, 5001.0, false, Stage::Warm), Verdict::Outside);
    }
}

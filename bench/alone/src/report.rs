//! The rows of the results, as a Markdown table and as JSON.

use crate::{
    backend::Backend,
    figures::{Figures, Stage},
    law::{self, Comparison, Verdict},
    load::AtOnce,
};
use bench_storm::stats::median;
use serde::Serialize;

/// The rounds of one target in one stage.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rounds {
    pub(crate) target: &'static str,
    pub(crate) rounds: Vec<Figures>,
}

/// One row: a backend, a load and a stage, with the rounds of each target. The first target is the backend alone, the
/// second the gate under test.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    backend: &'static str,
    at_once: String,
    stage: Stage,
    targets: Vec<Rounds>,
    /// Each target but the first, compared with the first.
    compared: Vec<Comparison>,
    /// That of the gate under test.
    verdict: Verdict,
}

impl Row {
    pub(crate) fn new(backend: Backend, at_once: AtOnce, stage: Stage, targets: Vec<Rounds>) -> Self {
        let direct = &targets[0].rounds;
        let compared: Vec<Comparison> = targets[1..].iter().map(|target| compare(&target.rounds, direct)).collect();
        let direct_p99_ms = median(direct.iter().map(|round| round.p99_ms).collect());
        let verdict = law::judge(&compared[0], direct_p99_ms, backend.sleeps, stage);
        Self { backend: backend.name, at_once: at_once.to_string(), stage, targets, compared, verdict }
    }

    fn markdown(&self) -> String {
        let direct = &self.targets[0].rounds;
        let direct_of = |of: fn(&Figures) -> f64| median(direct.iter().map(of).collect());
        let mut cells = vec![
            self.backend.to_owned(),
            self.at_once.clone(),
            self.stage.name().to_owned(),
            format!("{:.0}/s", direct_of(|figures| figures.served_per_second)),
            format!("{:.1} ms", direct_of(|figures| figures.p99_ms)),
        ];
        for (target, compared) in self.targets[1..].iter().zip(&self.compared) {
            let p99_ms = median(target.rounds.iter().map(|round| round.p99_ms).collect());
            let refused: u64 = target.rounds.iter().map(|round| round.refused).sum();
            let failed: u64 = target.rounds.iter().map(|round| round.failed).sum();
            let failed = if failed > 0 { format!(" + {failed} failed") } else { String::new() };
            cells.push(format!("{:.2}", compared.throughput));
            cells.push(format!("{:.2}x ({p99_ms:.1} ms)", compared.p99));
            cells.push(format!("{refused}{failed}"));
        }
        cells.push(match &self.verdict {
            Verdict::Holds => "holds".to_owned(),
            Verdict::Broken(parts) => format!("**broken**: {}", parts.join(", ")),
            Verdict::Outside => "outside".to_owned(),
        });
        format!("| {} |", cells.join(" | "))
    }
}

/// Ratios within each round, then the median of them: the speed of a shared machine changes between rounds.
fn compare(rounds: &[Figures], direct: &[Figures]) -> Comparison {
    let ratio = |of: fn(&Figures) -> f64| {
        median(rounds.iter().zip(direct).map(|(round, direct)| of(round) / of(direct)).collect())
    };
    Comparison {
        throughput: ratio(|figures| figures.served_per_second),
        p99: ratio(|figures| figures.p99_ms),
        lost: rounds.iter().map(|round| round.refused + round.failed).sum(),
    }
}

/// The table as Markdown, with the verdict below it.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let Some(row) = rows.first() else { return "Nothing was measured.\n".to_owned() };
    let mut lines = vec![String::from("| backend | at once | when | direct | p99 |")];
    for target in &row.targets[1..] {
        let name = target.target;
        lines[0] += &format!(" {name} / direct | {name} p99 / direct | {name} refused |");
    }
    lines[0] += " alone, invisible |";
    lines.push(format!("|{}", "---|".repeat(6 + 3 * (row.targets.len() - 1))));
    lines.extend(rows.iter().map(Row::markdown));
    let count = |is: fn(&Verdict) -> bool| rows.iter().filter(|row| is(&row.verdict)).count();
    let outside = count(|verdict| *verdict == Verdict::Outside);
    let holds = count(|verdict| *verdict == Verdict::Holds);
    lines.push(format!(
        "\nThe law holds in {holds} of {} rows; {outside} rows are outside of it.",
        rows.len() - outside
    ));
    lines.join("\n")
}

/// Whether no row breaks the law.
pub(crate) fn holds(rows: &[Row]) -> bool {
    !rows.iter().any(|row| matches!(row.verdict, Verdict::Broken(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(target: &'static str, figures: &[(f64, f64, u64)]) -> Rounds {
        let round = |&(served_per_second, p99_ms, refused)| Figures { served_per_second, p99_ms, refused, failed: 0 };
        Rounds { target, rounds: figures.iter().map(round).collect() }
    }

    #[test]
    fn a_gate_is_compared_with_the_same_round_and_the_median_is_shown() {
        let direct = rounds("direct", &[(100.0, 10.0, 0), (50.0, 20.0, 0), (100.0, 10.0, 0)]);
        let gate = rounds("gate", &[(98.0, 11.0, 0), (49.0, 22.0, 0), (10.0, 90.0, 2)]);
        let backend = Backend::of_name("20ms-cpu").unwrap();
        let row = Row::new(backend, AtOnce::Connections(8), Stage::Cold, vec![direct, gate]);
        let line = row.markdown();
        assert!(line.contains("| 0.98 | 1.10x (22.0 ms) | 2 |"), "{line}");
        assert!(line.contains("**broken**: 2 lost |"), "{line}");
        assert!(!holds(&[row]));
    }
}

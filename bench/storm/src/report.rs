//! The table: for each crawler and each gate, medians over the runs.

use crate::{
    journal::Played,
    peers::Peer,
    scenario::Scenario,
    verdict::{PageTimes, Verdict},
};
use std::{fmt::Write, time::Duration};
use tollgate_storm::plan::Phases;

/// All runs of one gate in one scenario.
struct Row {
    scenario: Scenario,
    peer: Peer,
    /// Page p99 of this gate without a storm.
    calm: PageTimes,
    runs: Vec<Verdict>,
}

/// The whole report as Markdown.
pub(crate) fn markdown(played: &[&Played], phases: Phases) -> String {
    let mut text = String::from(
        "| crawler | gate | humans OK | office OK | article p99 | archive p99 | page p99 | contained | recovered \
         | crawler CPU | core used | gate's CPU | tolls / CPU | humans', office's, crawler's |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows(played, phases) {
        writeln!(text, "{}", row.markdown()).expect("a string takes all that is written");
    }
    text
}

fn rows(played: &[&Played], phases: Phases) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for Played { title, outcome } in played {
        let calm = calm_of(title.peer, played, phases);
        let verdict = Verdict::of(outcome, phases, &calm);
        match rows.iter_mut().find(|row| row.scenario == title.scenario && row.peer == title.peer) {
            Some(row) => row.runs.push(verdict),
            None => rows.push(Row { scenario: title.scenario, peer: title.peer, calm, runs: vec![verdict] }),
        }
    }
    rows.sort_by_key(|row| (row.scenario, row.peer.place()));
    rows
}

/// What people saw of this gate without a storm: the very visits of the storms, if they were also played without a crawler. Otherwise the
/// calm before the storms, of all runs, since one run's is short.
fn calm_of(peer: Peer, played: &[&Played], phases: Phases) -> PageTimes {
    let of_peer = played.iter().filter(|other| other.title.peer == peer);
    let mut without = of_peer.clone().filter(|other| other.title.scenario == Scenario::S0).peekable();
    match without.peek() {
        Some(_) => PageTimes::of_no_storm(without.flat_map(|other| &other.outcome.views), phases),
        None => PageTimes::of_calm(of_peer.flat_map(|other| &other.outcome.views), phases),
    }
}

impl Row {
    fn markdown(&self) -> String {
        let percent = |of: fn(&Verdict) -> f64| format!("{:.1} %", self.median(of) * 100.0);
        let seconds = |of: fn(&Verdict) -> Option<Duration>| {
            let median = self.median(|verdict| of(verdict).map_or(f64::INFINITY, |span| span.as_secs_f64()));
            if median.is_finite() { format!("{median:.1} s") } else { "never".to_owned() }
        };
        let cells = [
            self.scenario.name().to_owned(),
            self.peer.name.to_owned(),
            percent(|verdict| verdict.humans_ok),
            percent(|verdict| verdict.office_ok),
            self.slowdown(|pages| pages.article),
            self.slowdown(|pages| pages.archive),
            self.slowdown(|pages| pages.all),
            seconds(|verdict| verdict.contained),
            seconds(|verdict| verdict.recovered),
            percent(|verdict| verdict.crawler_cpu),
            percent(|verdict| verdict.core_used),
            percent(|verdict| verdict.gate_cpu),
            self.tolls(),
            self.crowd_tolls(),
        ];
        format!("| {} |", cells.join(" | "))
    }

    /// The p99 in the storm, and how many times the calm one that is.
    fn slowdown(&self, of: fn(&PageTimes) -> Option<Duration>) -> String {
        let p99_s = self.median(|verdict| of(&verdict.pages).map_or(f64::NAN, |time| time.as_secs_f64()));
        match of(&self.calm) {
            Some(calm) if p99_s.is_finite() => format!("{:.1}x ({:.0} ms)", p99_s / calm.as_secs_f64(), p99_s * 1e3),
            _ => "n/a".to_owned(),
        }
    }

    fn tolls(&self) -> String {
        let ratio = self.median(|verdict| verdict.tolls.unwrap_or(f64::NAN));
        if ratio.is_finite() { format!("{ratio:.3}") } else { "n/a".to_owned() }
    }

    fn crowd_tolls(&self) -> String {
        let of = |at: usize| self.median(|verdict| verdict.crowd_tolls.map_or(f64::NAN, |tolls| tolls[at]));
        let cell = |ratio: f64| if ratio.is_finite() { format!("{ratio:.2}") } else { "n/a".to_owned() };
        [0, 1, 2].map(|at| cell(of(at))).join(", ")
    }

    fn median(&self, of: impl Fn(&Verdict) -> f64) -> f64 {
        median(self.runs.iter().map(of).collect())
    }
}

/// The middle value; of an even number the lower of the two, so that it is always one that was measured.
/// Values that are missing (NaN) sort last.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_a_measured_value_and_never_is_the_longest() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![1.0, f64::INFINITY]) - 1.0).abs() < 1e-9);
        assert!(median(vec![1.0, f64::INFINITY, f64::INFINITY]).is_infinite());
        assert!(median(vec![]).is_nan());
    }
}

//! The table: for each crawler and each gate, medians over the runs.

use crate::{
    peers::Peer,
    run::Outcome,
    scenario::Scenario,
    verdict::{PageTimes, Verdict},
};
use serde_json::{Value, json};
use std::{fmt::Write, time::Duration};
use tollgate_storm::{page::Kind, plan::Phases, tally::View};

/// One storm that was played.
pub(crate) struct Played {
    pub(crate) scenario: Scenario,
    pub(crate) peer: Peer,
    pub(crate) outcome: Outcome,
}

/// All runs of one gate in one scenario.
struct Row<'a> {
    scenario: Scenario,
    peer: Peer,
    /// Page p99 of this gate without a storm.
    calm: PageTimes,
    runs: Vec<(&'a Outcome, Verdict)>,
}

/// The whole report as Markdown.
pub(crate) fn markdown(played: &[Played], phases: Phases) -> String {
    let mut text = String::from(
        "| crawler | gate | humans OK | office OK | article p99 | archive p99 | page p99 | contained | recovered \
         | crawler CPU | core used | tolls / CPU |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows(played, phases) {
        writeln!(text, "{}", row.markdown()).expect("a string takes all that is written");
    }
    text
}

/// Everything that was measured, run by run.
pub(crate) fn json(played: &[Played], phases: Phases) -> Value {
    let rows: Vec<Value> = rows(played, phases).iter().map(Row::json).collect();
    json!({
        "calm_s": phases.calm.as_secs_f64(),
        "storm_s": phases.storm.as_secs_f64(),
        "recovery_s": phases.recovery.as_secs_f64(),
        "rows": rows,
    })
}

fn rows(played: &[Played], phases: Phases) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for one in played {
        let calm = calm_of(one.peer, played, phases);
        let verdict = Verdict::of(&one.outcome, phases, &calm);
        let known = rows.iter_mut().find(|row| row.scenario == one.scenario && row.peer == one.peer);
        match known {
            Some(row) => row.runs.push((&one.outcome, verdict)),
            None => {
                rows.push(Row { scenario: one.scenario, peer: one.peer, calm, runs: vec![(&one.outcome, verdict)] })
            }
        }
    }
    rows.sort_by_key(|row| row.scenario);
    rows
}

/// What people saw of this gate without a storm: the very visits of the storms, if they were also played without a crawler. Otherwise the
/// calm before the storms, of all runs, since one run's is short.
fn calm_of(peer: Peer, played: &[Played], phases: Phases) -> PageTimes {
    let of_peer = played.iter().filter(|other| other.peer == peer);
    let mut without = of_peer.clone().filter(|other| other.scenario == Scenario::S0).peekable();
    match without.peek() {
        Some(_) => PageTimes::of_no_storm(without.flat_map(|other| &other.outcome.views), phases),
        None => PageTimes::of_calm(of_peer.flat_map(|other| &other.outcome.views), phases),
    }
}

impl Row<'_> {
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
            self.tolls(),
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

    fn median(&self, of: impl Fn(&Verdict) -> f64) -> f64 {
        median(self.runs.iter().map(|(_, verdict)| of(verdict)).collect())
    }

    fn json(&self) -> Value {
        let runs: Vec<Value> = self.runs.iter().map(|(outcome, verdict)| run_json(outcome, verdict)).collect();
        json!({
            "scenario": self.scenario.name(),
            "gate": self.peer.name,
            "calm_p99_ms": pages_json(&self.calm),
            "runs": runs,
        })
    }
}

fn run_json(outcome: &Outcome, verdict: &Verdict) -> Value {
    json!({
        "humans_ok": verdict.humans_ok,
        "office_ok": verdict.office_ok,
        "p99_ms": pages_json(&verdict.pages),
        "contained_ms": verdict.contained.map(millis),
        "recovered_ms": verdict.recovered.map(millis),
        "crawler_cpu": verdict.crawler_cpu,
        "core_used": verdict.core_used,
        "gate_cpu": verdict.gate_cpu,
        "tolls_per_cpu": verdict.tolls,
        "crawler": {
            "answered": outcome.crawled.answered,
            "refused": outcome.crawled.refused,
            "broken": outcome.crawled.broken,
        },
        "storm_cpu_ms": outcome.storm.cpu.map(millis),
        "views": outcome.views.iter().map(view_json).collect::<Vec<Value>>(),
    })
}

/// One visit; no page time if it was never served.
fn view_json(view: &View) -> Value {
    json!({
        "at_ms": millis(view.at),
        "crowd": view.crowd.name(),
        "kind": match view.kind {
            Kind::Article => "article",
            Kind::Archive => "archive",
            Kind::Asset => "asset",
        },
        "page_ms": view.page.ok().map(millis),
        "complete": view.whole.is_ok(),
    })
}

fn pages_json(pages: &PageTimes) -> Value {
    json!({
        "article": pages.article.map(millis),
        "archive": pages.archive.map(millis),
        "all": pages.all.map(millis),
    })
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
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

//! Tables: for each crawler and each gate, medians over the runs; and the law for storms, with the worst run beside
//! the median.

use crate::{
    course::Course,
    journal::{Played, Title},
    law::{self, CalmPages, Distance, Window, Windows},
    scenario::Scenario,
    verdict::{PageTimes, Verdict},
};
use bench_storm::{peers::Peer, stats::median};
use std::{fmt::Write, time::Duration};
use tollgate_storm::{page::Costs, tally::View};

/// Runs of one gate in one scenario and one course.
struct Row {
    scenario: Scenario,
    course: Course,
    peer: Peer,
    /// Page p99 of this gate without a crawler.
    calm: PageTimes,
    runs: Vec<Verdict>,
}

/// The table of the fixed scenarios, as Markdown.
pub(crate) fn markdown(played: &[&Played]) -> String {
    let mut text = String::from(
        "| crawler | gate | humans OK | office OK | article p99 | archive p99 | page p99 | contained | recovered \
         | crawler CPU | core used | gate's CPU | tolls / CPU | humans', office's, crawler's |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows(played) {
        writeln!(text, "{}", row.markdown()).expect("writing to a string cannot fail");
    }
    text
}

fn rows(played: &[&Played]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for Played { title, outcome } in played {
        let Title { scenario, course, peer, phases, .. } = *title;
        let calm = calm_of(peer, played);
        let verdict = Verdict::of(outcome, phases, &calm);
        match rows.iter_mut().find(|row| (row.scenario, row.course, row.peer) == (scenario, course, peer)) {
            Some(row) => row.runs.push(verdict),
            None => rows.push(Row { scenario, course, peer, calm, runs: vec![verdict] }),
        }
    }
    rows.sort_by_key(|row| (row.course, row.scenario, row.peer.place()));
    rows
}

/// The pages of this gate without a crawler: the same page views as in the storms, if they were also played without a
/// crawler, otherwise the calm before the storms. All runs count together, since one run has few.
fn calm_of(peer: Peer, played: &[&Played]) -> PageTimes {
    let of_peer = || played.iter().filter(move |other| other.title.peer == peer && other.title.course == Course::Storm);
    let without = || of_peer().filter(|other| other.title.scenario == Scenario::S0);
    let phases = of_peer().map(|other| other.title.phases).next().unwrap_or(crate::PHASES);
    match without().next() {
        Some(_) => PageTimes::of_no_storm(without().flat_map(|other| &other.outcome.views), phases),
        None => PageTimes::of_calm(of_peer().flat_map(|other| &other.outcome.views), phases),
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
            format!("{}{}", self.scenario.name(), self.course.name()),
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

/// One storm, measured by the law.
struct Judged<'a> {
    title: &'a Title,
    windows: Windows,
    distance: Distance,
}

/// The law for storms: each cell has the median and the worst run, and the worst run is named with its parameters.
pub(crate) fn law(played: &[&Played]) -> String {
    let mut text = String::from(
        "| crawler | gate | runs | first 5 s: humans | office | later: humans | office | served: humans | office \
         | core used | crawler's share | law holds in |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut judged: Vec<Judged<'_>> = played.iter().filter_map(|one| judge(one, played)).collect();
    judged.sort_by_key(|one| (one.title.course, one.title.scenario, one.title.peer.place()));
    let is_same = |a: &Judged<'_>, b: &Judged<'_>| {
        (a.title.course, a.title.scenario, a.title.peer) == (b.title.course, b.title.scenario, b.title.peer)
    };
    let rows: Vec<&[Judged<'_>]> = judged.chunk_by(is_same).collect();
    for row in &rows {
        writeln!(text, "{}", law_row(row)).expect("writing to a string cannot fail");
    }
    let unjudged = played.iter().filter(|one| one.title.scenario.origin().is_some()).count() - judged.len();
    if unjudged > 0 {
        writeln!(text, "\n{unjudged} storms have no calm pages to compare with: play s0 too.")
            .expect("writing to a string cannot fail");
    }
    text.push('\n');
    let mut peers: Vec<Peer> = judged.iter().map(|one| one.title.peer).collect();
    peers.sort_by_key(|peer| peer.place());
    peers.dedup();
    for peer in peers {
        let runs: Vec<&Judged<'_>> = judged.iter().filter(|one| one.title.peer == peer).collect();
        let holds = runs.iter().filter(|one| one.distance.times <= 1.0).count();
        let beyond = runs.iter().filter(|one| one.distance.times > 2.0).count();
        let count = runs.len();
        writeln!(text, "{peer}: the law holds in {holds} of {count} storms, {beyond} are beyond twice a bound.  ")
            .expect("writing to a string cannot fail");
    }
    text.push_str("\nThe run furthest from the law, of each row:\n");
    for row in &rows {
        writeln!(text, "- {}", worst_run(row)).expect("writing to a string cannot fail");
    }
    text
}

/// Nothing for a run without a crawler, or without calm pages to compare with.
fn judge<'a>(Played { title, outcome }: &'a Played, played: &[&Played]) -> Option<Judged<'a>> {
    title.scenario.origin()?;
    let calm = calm_pages(title, played)?;
    let windows = Windows::of(outcome, title.course, title.phases, &calm);
    Some(Judged { title, windows, distance: law::worst(&windows, title.scenario, title.course) })
}

/// Pages without a crawler: those of the storm's own calm run, or those of the calm before the crawler in all runs of
/// this gate.
fn calm_pages(title: &Title, played: &[&Played]) -> Option<CalmPages> {
    let costs = title.variation.map_or(Costs::default(), |variation| variation.costs);
    let calm_runs = || played.iter().filter(|other| other.title.is_calm_of(title));
    if calm_runs().next().is_some() {
        return CalmPages::of(calm_runs().flat_map(|other| &other.outcome.views), &costs);
    }
    let same_gate =
        || played.iter().filter(|other| other.title.peer == title.peer && other.title.variation == title.variation);
    let is_calm = |other: &Played, view: &View| view.ended < other.title.phases.storm_at();
    let views = || same_gate().flat_map(|other| other.outcome.views.iter().filter(|view| is_calm(other, view)));
    CalmPages::of(views().collect::<Vec<_>>().into_iter(), &costs)
}

fn law_row(runs: &[Judged<'_>]) -> String {
    let title = runs[0].title;
    let times = |of: &dyn Fn(&Windows) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| of(&run.windows)).filter(|value| !value.is_nan()).collect();
        let worst = values.iter().copied().fold(f64::NAN, f64::max);
        format!("{:.1}x ({worst:.1}x)", median(values))
    };
    let percent = |of: &dyn Fn(&Window) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| of(&run.windows.whole) * 100.0).collect();
        let worst = values.iter().copied().fold(f64::NAN, f64::min);
        let part =
            |window: fn(&Windows) -> &Window| median(runs.iter().map(|run| of(window(&run.windows)) * 100.0).collect());
        let (first, later) = (part(|windows| &windows.first), part(|windows| &windows.later));
        format!("{:.1} % ({worst:.1} %); {first:.1} %, {later:.1} %", median(values))
    };
    let holds = runs.iter().filter(|run| run.distance.times <= 1.0).count();
    let cells = [
        format!("{}{}", title.scenario.name(), title.course.name()),
        title.peer.name.to_owned(),
        runs.len().to_string(),
        times(&|windows| windows.first.humans.slowdown),
        times(&|windows| windows.first.office.slowdown),
        times(&|windows| windows.later.humans.slowdown),
        times(&|windows| windows.later.office.slowdown),
        percent(&|window| window.humans.served),
        percent(&|window| window.office.served),
        percent(&|window| window.core_used),
        percent(&|window| window.crawler_share),
        format!("{holds} of {}", runs.len()),
    ];
    format!("| {} |", cells.join(" | "))
}

fn worst_run(runs: &[Judged<'_>]) -> String {
    let worst = runs.iter().max_by(|a, b| a.distance.times.total_cmp(&b.distance.times)).expect("a row has runs");
    let Judged { title, distance: Distance { part, times }, .. } = worst;
    let verdict = if *times <= 1.0 { "holds" } else { "broken" };
    let parameters = title.variation.map_or(String::new(), |variation| format!(": {variation}"));
    let (scenario, course) = (title.scenario.name(), title.course.name());
    format!(
        "{scenario}{course}, {}, seed {}: {verdict}, {part} ({times:.2} of the bound){parameters}",
        title.peer, title.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run::Outcome, variation::Variation};
    use tollgate_storm::{counters::Reading, crowd::Crowd, page::Kind, plan::Phases};

    /// A run whose pages all take `page_ms` while the crawler is there.
    fn played(scenario: Scenario, seed: u64, page_ms: u64) -> Played {
        let second = Duration::from_secs(1);
        let title = Title {
            scenario,
            peer: Peer::of_name("tollgate").unwrap(),
            seed,
            phases: Phases { calm: second, storm: second * 10, recovery: second },
            alike: false,
            crawler_round_trip_ms: 20,
            workers: None,
            build: Some(1),
            course: Course::Storm,
            variation: Some(Variation::of_seed(seed)),
        };
        let page = Ok(Duration::from_millis(page_ms));
        let view = |number: u32| View {
            at: second + Duration::from_millis(100) * number,
            crowd: if number.is_multiple_of(2) { Crowd::Human } else { Crowd::Office },
            kind: Kind::Article,
            page,
            whole: page,
            ended: second * 12,
        };
        let cpu = [1, 1, 8].map(Duration::from_secs);
        let storm = Reading { uptime: second * 10, process_cpu: second * 10, cpu, ..Reading::default() };
        let part = |cpu_ms: u64, crawler_ms: u64| Reading {
            uptime: second * 5,
            process_cpu: Duration::from_millis(cpu_ms),
            cpu: [0, 0, crawler_ms].map(Duration::from_millis),
            ..Reading::default()
        };
        let (first, later) = (part(4950, 3000), part(5050, 5000));
        let views = (0..100).map(view).collect();
        Played { title, outcome: Outcome { views, storm, first, later, ..Outcome::default() } }
    }

    #[test]
    fn each_storm_is_compared_with_its_own_calm_and_the_worst_seed_is_named() {
        let runs = [
            played(Scenario::S0, 3, 20),
            played(Scenario::S1, 3, 30),
            played(Scenario::S0, 6, 100),
            played(Scenario::S1, 6, 500),
        ];
        let text = law(&runs.iter().collect::<Vec<_>>());
        assert!(text.contains("| S1 | tollgate | 2 | 1.5x (5.0x) | 1.5x (5.0x) |"), "{text}");
        assert!(text.contains("| 1 of 2 |"), "{text}");
        assert!(text.contains("| 100.0 % (100.0 %); 99.0 %, 101.0 % | 80.0 % (80.0 %); 60.0 %, 100.0 % |"), "{text}");
        assert!(text.contains("tollgate: the law holds in 1 of 2 storms, 1 are beyond twice a bound."), "{text}");
        assert!(text.contains("seed 6: broken, office later 5.0x, at most 2.0x (2.50 of the bound)"), "{text}");
    }

    #[test]
    fn a_storm_without_calm_pages_is_not_judged_and_that_is_reported() {
        let runs = [played(Scenario::S1, 3, 30)];
        assert!(law(&[&runs[0]]).contains("1 storms have no calm pages to compare with"));
    }
}

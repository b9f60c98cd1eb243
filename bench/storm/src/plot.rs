//! The subcommand `plot`: pictures of storms from the journal. Nothing is smoothed or left out: one dot is one page
//! view.

use crate::{
    journal::{self, Played},
    scenario::Scenario,
};
use bench_storm::peers::Peer;
use clap::Args;
use std::{fmt::Write, io, path::PathBuf, time::Duration};
use tollgate_storm::{
    crowd::{CRAWLER_CONNECTIONS, Crowd},
    plan::Phases,
};

/// Options of the plots.
#[derive(Args)]
pub(crate) struct PlotArguments {
    /// The file that `--journal` wrote.
    #[arg(long)]
    journal: PathBuf,
    /// The crawler's networks.
    #[arg(long, value_enum, default_value_t = Scenario::S2)]
    scenario: Scenario,
    /// The gates to draw, one below the other.
    #[arg(long, value_delimiter = ',', value_parser = Peer::of_name, default_values = ["none", "tollgate"])]
    gates: Vec<Peer>,
    /// The file for the plot of page times.
    #[arg(long)]
    pages: Option<PathBuf>,
    /// The file for the plot of CPU shares.
    #[arg(long)]
    cpu: Option<PathBuf>,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 170.0;
const GAP: f64 = 46.0;
/// The range of page times on the logarithmic axis.
const LEAST_MS: f64 = 10.0;
const MOST_MS: f64 = 5000.0;
/// The colour and the name of each crowd, in the order of [`Crowd::ALL`].
const COLOURS: [(&str, &str); 3] = [("#1f6feb", "people"), ("#2a9d55", "the office"), ("#c8553d", "the crawler")];

/// Draws the requested plots.
pub(crate) fn draw(arguments: &PlotArguments) -> io::Result<()> {
    let played = journal::read(&arguments.journal)?;
    let find = |gate: &Peer| last_run(&played, arguments.scenario, *gate);
    let runs: Vec<&Played> = arguments.gates.iter().map(find).collect::<io::Result<_>>()?;
    if let Some(path) = &arguments.pages {
        std::fs::write(path, pages(&runs))?;
    }
    if let Some(path) = &arguments.cpu {
        std::fs::write(path, cpu(&runs))?;
    }
    Ok(())
}

fn last_run(played: &[Played], scenario: Scenario, gate: Peer) -> io::Result<&Played> {
    let run = played.iter().rev().find(|one| one.title.scenario == scenario && one.title.peer == gate);
    run.ok_or_else(|| io::Error::other(format!("{} was not played against {gate}", scenario.name())))
}

fn begin(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#333\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    )
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn legend(out: &mut String, colours: &[(&str, &str)], y: f64) {
    for (index, (colour, words)) in colours.iter().enumerate() {
        let x = LEFT + index as f64 * 110.0;
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", y - 4.0);
        text(out, x + 8.0, y, "start", words);
    }
}

/// The heading of a panel.
fn caption(gate: Peer) -> &'static str {
    match gate.name {
        "none" => "Without Tollgate",
        "tollgate" => "With Tollgate, default settings",
        other => other,
    }
}

/// Page times over time, one panel per gate.
fn pages(runs: &[&Played]) -> String {
    // All runs of a plot have the same phases, because they are one scenario of one command.
    let seconds = |of: fn(Phases) -> Duration| runs.first().map_or(1.0, |run| of(run.title.phases).as_secs_f64());
    let (storm, recovery, end) = (seconds(Phases::storm_at), seconds(Phases::recovery_at), seconds(Phases::end_at));
    let height = 40.0 + runs.len() as f64 * (PANEL + GAP);
    let x = |at_s: f64| LEFT + at_s / end * (WIDTH - LEFT - RIGHT);
    let mut out = begin(height);
    legend(&mut out, &COLOURS[..2], 20.0);
    text(&mut out, WIDTH - RIGHT, 20.0, "end", "each dot is the time of one page; × was not served within 5 s");
    for (index, Played { title, outcome }) in runs.iter().enumerate() {
        let top = 52.0 + index as f64 * (PANEL + GAP);
        let y =
            |ms: f64| top + PANEL - (ms.clamp(LEAST_MS, MOST_MS) / LEAST_MS).ln() / (MOST_MS / LEAST_MS).ln() * PANEL;
        text(&mut out, LEFT, top - 8.0, "start", caption(title.peer));
        let (from, until) = (x(storm), x(recovery));
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL}\" fill=\"#f6e3de\"/>",
            until - from
        );
        let connections = title.variation.map_or(CRAWLER_CONNECTIONS, |variation| variation.crawler_connections.into());
        let crawler = format!("a crawler with {connections} connections");
        text(&mut out, f64::midpoint(from, until), top - 8.0, "middle", &crawler);
        for (ms, words) in [(10.0, "10 ms"), (100.0, "100 ms"), (1000.0, "1 s"), (5000.0, "5 s")] {
            let (line, right) = (y(ms), WIDTH - RIGHT);
            let _ = writeln!(out, "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#ddd\"/>");
            text(&mut out, LEFT - 6.0, line + 4.0, "end", words);
        }
        for view in &outcome.views {
            let at = x(view.at.as_secs_f64());
            let (colour, _) = COLOURS[view.crowd as usize];
            match view.page.ok().map(|time| time.as_secs_f64() * 1e3) {
                Some(ms) => {
                    let _ = writeln!(out, "<circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"1.8\" fill=\"{colour}\"/>", y(ms));
                }
                None => {
                    let (a, b, c, d) = (at - 2.5, at + 2.5, top - 2.5, top + 2.5);
                    let _ = writeln!(
                        out,
                        "<path d=\"M{a:.1} {c:.1}L{b:.1} {d:.1}M{a:.1} {d:.1}L{b:.1} {c:.1}\" stroke=\"{colour}\"/>"
                    );
                }
            }
        }
        for second in (0..=end as u64).step_by(if end > 60.0 { 10 } else { 5 }) {
            let anchor = if second as f64 + 1.0 > end { "end" } else { "middle" };
            text(&mut out, x(second as f64), top + PANEL + 16.0, anchor, &format!("{second} s"));
        }
    }
    out + "</svg>\n"
}

/// The CPU share of each crowd while the crawler is active.
fn cpu(runs: &[&Played]) -> String {
    let height = 40.0 + runs.len() as f64 * 44.0;
    let mut out = begin(height);
    legend(&mut out, &COLOURS, 20.0);
    for (index, Played { title, outcome }) in runs.iter().enumerate() {
        let top = 36.0 + index as f64 * 44.0;
        let name = if title.peer.name == "none" { "no gate" } else { title.peer.name };
        text(&mut out, LEFT - 6.0, top + 18.0, "end", name);
        let mut from = LEFT;
        for (crowd, (colour, _)) in Crowd::ALL.iter().zip(COLOURS) {
            let share = outcome.storm.cpu_of(*crowd).as_secs_f64() / title.phases.storm.as_secs_f64();
            let width = share * (WIDTH - LEFT - RIGHT);
            let _ = writeln!(
                out,
                "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"28\" fill=\"{colour}\"/>"
            );
            if width > 40.0 {
                let percent = format!("{:.0} %", share * 100.0);
                let (x, y) = (from + width / 2.0, top + 18.0);
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#fff\">{percent}</text>"
                );
            }
            from += width;
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{course::Course, journal::Title, run::Outcome};
    use tollgate_storm::{
        counters::Reading,
        page::Kind,
        tally::{Failure, View},
    };

    #[test]
    fn every_visit_is_a_dot_and_every_failure_a_cross() {
        let (second, millis) = (Duration::from_secs(1), Duration::from_millis);
        let peer = Peer::of_name("none").unwrap();
        let title = Title {
            scenario: Scenario::S2,
            peer,
            seed: 1,
            phases: Phases { calm: second, storm: second * 2, recovery: second },
            alike: false,
            crawler_round_trip_ms: 20,
            workers: None,
            build: None,
            course: Course::Storm,
            variation: None,
        };
        let view = |at_ms, crowd, page: Result<Duration, Failure>| View {
            at: millis(at_ms),
            crowd,
            kind: Kind::Article,
            page,
            whole: page,
            ended: second,
        };
        let views = vec![
            view(500, Crowd::Human, Ok(millis(20))),
            view(1500, Crowd::Office, Ok(millis(40))),
            view(1600, Crowd::Human, Err(Failure::Late)),
        ];
        let storm = Reading { cpu: [100, 50, 1850].map(millis), ..Reading::default() };
        let played = [Played { title, outcome: Outcome { views, storm, ..Outcome::default() } }];
        let runs = [last_run(&played, Scenario::S2, peer).unwrap()];
        let picture = pages(&runs);
        assert_eq!(picture.matches("r=\"1.8\"").count(), 2);
        assert_eq!(picture.matches("<path d=\"M").count(), 4 + 1, "four lines and a cross");
        assert!(cpu(&runs).contains(">92 %<"));
        assert!(last_run(&played, Scenario::S2, Peer::of_name("tollgate").unwrap()).is_err());
    }
}

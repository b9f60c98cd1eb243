//! Pictures of storms that were played, drawn from the file that `--json` wrote. Nothing is smoothed or left out: one dot is one visit.

use clap::Args;
use serde_json::Value;
use std::{fmt::Write, io, path::PathBuf};

/// What to draw.
#[derive(Args)]
pub(crate) struct PlotArguments {
    /// The file that `--json` wrote.
    #[arg(long)]
    json: PathBuf,
    /// Where the crawler sits, as the table calls it.
    #[arg(long, default_value = "S2")]
    scenario: String,
    /// The gates to draw, one below the other.
    #[arg(long, value_delimiter = ',', default_values_t = ["none".to_owned(), "tollgate".to_owned()])]
    gates: Vec<String>,
    /// The picture of page times.
    #[arg(long)]
    pages: Option<PathBuf>,
    /// The picture of who had the core.
    #[arg(long)]
    cpu: Option<PathBuf>,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 170.0;
const GAP: f64 = 46.0;
/// Page times from here to there, on a logarithmic scale.
const LEAST_MS: f64 = 10.0;
const MOST_MS: f64 = 5000.0;
const COLOURS: [(&str, &str, &str); 3] =
    [("human", "#1f6feb", "people"), ("office", "#2a9d55", "the office"), ("crawler", "#c8553d", "the crawler")];

/// Draws what was asked for.
pub(crate) fn draw(arguments: &PlotArguments) -> io::Result<()> {
    let played: Value = serde_json::from_slice(&std::fs::read(&arguments.json)?)?;
    let runs: Vec<(&str, &Value)> = arguments
        .gates
        .iter()
        .map(|gate| Ok((gate.as_str(), first_run(&played, &arguments.scenario, gate)?)))
        .collect::<io::Result<_>>()?;
    if let Some(path) = &arguments.pages {
        std::fs::write(path, pages(&played, &runs))?;
    }
    if let Some(path) = &arguments.cpu {
        std::fs::write(path, cpu(&played, &runs))?;
    }
    Ok(())
}

fn first_run<'a>(played: &'a Value, scenario: &str, gate: &str) -> io::Result<&'a Value> {
    let rows = played["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let row = rows.iter().find(|row| row["scenario"] == scenario && row["gate"] == gate);
    let run = row.and_then(|row| row["runs"].get(0));
    run.ok_or_else(|| io::Error::other(format!("{scenario} was not played against {gate}")))
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

fn legend(out: &mut String, colours: &[(&str, &str, &str)], y: f64) {
    for (index, (_, colour, words)) in colours.iter().enumerate() {
        let x = LEFT + index as f64 * 110.0;
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", y - 4.0);
        text(out, x + 8.0, y, "start", words);
    }
}

/// Page times over time, one panel for each gate.
fn pages(played: &Value, runs: &[(&str, &Value)]) -> String {
    let seconds = |name: &str| played[name].as_f64().unwrap_or(0.0);
    let (storm, recovery) = (seconds("calm_s"), seconds("calm_s") + seconds("storm_s"));
    let end = recovery + seconds("recovery_s");
    let height = 40.0 + runs.len() as f64 * (PANEL + GAP);
    let x = |at_s: f64| LEFT + at_s / end * (WIDTH - LEFT - RIGHT);
    let mut out = begin(height);
    legend(&mut out, &COLOURS[..2], 20.0);
    text(&mut out, WIDTH - RIGHT, 20.0, "end", "each dot is a page that somebody waited for; × was never served");
    for (index, (gate, run)) in runs.iter().enumerate() {
        let top = 52.0 + index as f64 * (PANEL + GAP);
        let y =
            |ms: f64| top + PANEL - (ms.clamp(LEAST_MS, MOST_MS) / LEAST_MS).ln() / (MOST_MS / LEAST_MS).ln() * PANEL;
        let title = if *gate == "none" { "without a gate" } else { gate };
        text(&mut out, LEFT, top - 8.0, "start", title);
        let (from, until) = (x(storm), x(recovery));
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL}\" fill=\"#f6e3de\"/>",
            until - from
        );
        text(&mut out, f64::midpoint(from, until), top - 8.0, "middle", "the crawler is here");
        for (ms, words) in [(10.0, "10 ms"), (100.0, "100 ms"), (1000.0, "1 s"), (5000.0, "5 s")] {
            let (line, right) = (y(ms), WIDTH - RIGHT);
            let _ = writeln!(out, "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#ddd\"/>");
            text(&mut out, LEFT - 6.0, line + 4.0, "end", words);
        }
        for view in run["views"].as_array().into_iter().flatten() {
            let at = x(view["at_ms"].as_f64().unwrap_or(0.0) / 1e3);
            let colour =
                COLOURS.iter().find(|(crowd, ..)| view["crowd"] == *crowd).map_or("#000", |(_, colour, _)| colour);
            match view["page_ms"].as_f64() {
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
        for second in (0..=end as u64).step_by(5) {
            text(&mut out, x(second as f64), top + PANEL + 16.0, "middle", &format!("{second} s"));
        }
    }
    out + "</svg>\n"
}

/// What each crowd had of the core while the crawler was there.
fn cpu(played: &Value, runs: &[(&str, &Value)]) -> String {
    let storm_ms = played["storm_s"].as_f64().unwrap_or(1.0) * 1e3;
    let height = 40.0 + runs.len() as f64 * 44.0;
    let mut out = begin(height);
    legend(&mut out, &COLOURS, 20.0);
    for (index, (gate, run)) in runs.iter().enumerate() {
        let top = 36.0 + index as f64 * 44.0;
        let name = if *gate == "none" { "no gate" } else { gate };
        text(&mut out, LEFT - 6.0, top + 18.0, "end", name);
        let mut from = LEFT;
        for (crowd, (_, colour, _)) in COLOURS.iter().enumerate() {
            let share = run["storm_cpu_ms"][crowd].as_f64().unwrap_or(0.0) / storm_ms;
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
    use serde_json::json;

    #[test]
    fn every_visit_is_a_dot_and_every_failure_a_cross() {
        let played = json!({"calm_s": 1.0, "storm_s": 2.0, "recovery_s": 1.0, "rows": [
            {"scenario": "S2", "gate": "none", "runs": [{"storm_cpu_ms": [100.0, 50.0, 1850.0], "views": [
                {"at_ms": 500.0, "crowd": "human", "page_ms": 20.0},
                {"at_ms": 1500.0, "crowd": "office", "page_ms": 40.0},
                {"at_ms": 1600.0, "crowd": "human", "page_ms": null},
            ]}]},
        ]});
        let runs = [("none", first_run(&played, "S2", "none").unwrap())];
        let picture = pages(&played, &runs);
        assert_eq!(picture.matches("r=\"1.8\"").count(), 2);
        assert_eq!(picture.matches("<path d=\"M").count(), 4 + 1, "four lines and a cross");
        assert!(cpu(&played, &runs).contains(">92 %<"));
        assert!(first_run(&played, "S2", "tollgate").is_err());
    }
}

//! Draws the timeline of a replay with block characters, for the page on the terminal.

use tollgate_core::time::{Moment, Span};

use super::counts::millis;
use super::summary::Summary;
use super::terminal_text::{clock, count, date, dated_clock, length, short};
use super::timeline::TimelineColumn;
use crate::colours::{BARS, Colours, DIM, GREEN, RED, YELLOW};

/// The column in which the chart starts.
const INDENT: usize = 11;
/// The distance between time labels, in columns.
const LABEL_COLUMNS: usize = 14;

/// The chart: one row for each value, followed by its peak, and the times below. Rows without a value above 0 are left
/// out.
pub(super) fn chart(summary: &Summary, ink: Colours) -> String {
    let timeline = &summary.timeline;
    let minutes = timeline.column_ms as f64 / 60_000.0;
    let rate = |peak: u64| match (peak as f64 / minutes).round() as u64 {
        0 => "<1/min".to_string(),
        rate if rate < 1_000_000 => format!("{}/min", count(rate)),
        rate => format!("{}/min", short(rate)),
    };
    let cores = |peak_ms: u64| format!("{:.2} cores", peak_ms as f64 / timeline.column_ms.max(1) as f64);
    let mut text = String::new();
    let mut row = |name: &str, figure: fn(&TimelineColumn) -> u64, peak: &dyn Fn(u64) -> String, colour: &str| {
        let figures: Vec<_> = timeline.columns.iter().map(figure).collect();
        let highest = figures.iter().copied().max().unwrap_or(0);
        if highest > 0 {
            let bars = ink.paint(colour, &bars(&figures, highest));
            text.push_str(&format!("  {name:<8} {bars} {}\n", ink.paint(DIM, &peak(highest))));
        }
    };
    row("requests", |column| column.requests, &rate, GREEN);
    row("held", |column| column.held, &rate, YELLOW);
    row("refused", |column| column.refused, &rate, RED);
    row("cost", |column| millis(column.cost), &cores, GREEN);
    if summary.decisions.done.saved_ms() > 0 {
        row("after", |column| millis(column.cost_admitted), &cores, GREEN);
    }
    row("band", |column| column.band as u64, &|peak| ["", "elevated", "critical"][peak as usize].to_string(), YELLOW);
    text.push_str(&labels(summary, ink));
    text
}

/// One block character for each value, as high as its part of `highest`.
fn bars(figures: &[u64], highest: u64) -> String {
    // A small value is never drawn as zero.
    let height = |figure: u64| (figure as u128 * 8).div_ceil(u128::from(highest.max(1))) as usize;
    figures.iter().map(|figure| BARS[height(*figure).min(8)]).collect()
}

/// The times below the chart, and the width of a column.
fn labels(summary: &Summary, ink: Colours) -> String {
    let timeline = &summary.timeline;
    let with_seconds = timeline.column_ms * (LABEL_COLUMNS as u64) < 10 * 60_000;
    let mut line = " ".repeat(INDENT);
    for column in (0..timeline.columns.len()).step_by(LABEL_COLUMNS) {
        let at = Moment::from_millis(timeline.begin_at_ms + column as u64 * timeline.column_ms);
        let label = match summary.spans_days() {
            true if timeline.column_ms >= 86_400_000 => date(at).unwrap_or_else(|| clock(at, with_seconds)),
            true => dated_clock(at, false),
            false => clock(at, with_seconds),
        };
        line.push_str(&format!("{:<LABEL_COLUMNS$}", format!("╵{label}")));
    }
    let width = format!("each column is {}", length(Span::from_millis(timeline.column_ms)));
    format!("{}\n{}{}\n", ink.paint(DIM, line.trim_end()), " ".repeat(INDENT), ink.paint(DIM, &width))
}

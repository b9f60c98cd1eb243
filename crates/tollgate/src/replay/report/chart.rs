//! Charts of the timeline as SVG, for the HTML report.

use std::fmt::Write;

use tollgate_core::time::{Moment, Span};

use super::escaped;
use crate::replay::counts::millis;
use crate::replay::summary::Summary;
use crate::replay::terminal_text::{clock, count, dated_clock, length};
use crate::replay::timeline::TimelineColumn;

/// The size of a chart, in units of its view box, as all lengths here.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 220.0;
/// The space for labels on the left, and below.
const LEFT: f64 = 52.0;
const BELOW: f64 = 22.0;
/// The space above the highest column.
const ABOVE: f64 = 8.0;
/// The minimum distance between labels of the time axis.
const LABEL_WIDTH: f64 = 110.0;

/// A part of a column: its CSS class and its value, which is drawn as its height.
type Piece = (&'static str, f64);

/// Passed, held and refused requests in each column.
pub(super) fn requests(summary: &Summary) -> String {
    let pieces = |column: &TimelineColumn| {
        let passed = column.requests.saturating_sub(column.held + column.refused);
        [("passed", passed as f64), ("held", column.held as f64), ("refused", column.refused as f64)]
    };
    let hint = |column: &TimelineColumn| {
        let passed = column.requests.saturating_sub(column.held + column.refused);
        format!("{} passed, {} held, {} refused", count(passed), count(column.held), count(column.refused))
    };
    let svg = columns(summary, "Requests over time", pieces, hint, None, |value| count(value as u64));
    let legend = match summary.decisions.done.held + summary.decisions.done.refused {
        0 => String::new(),
        _ => legend(&[("passed", "passed"), ("held", "held"), ("refused", "refused")]),
    };
    figure(&svg, summary, &legend)
}

/// The cores that admitted and refused requests used in each column, and the cores of the backend.
pub(super) fn load(summary: &Summary) -> String {
    let width_ms = summary.timeline.column_ms.max(1) as f64;
    let cores = |cost: Span| millis(cost) as f64 / width_ms;
    let pieces = |column: &TimelineColumn| {
        let (all, admitted) = (cores(column.cost), cores(column.cost_admitted));
        [("passed", admitted), ("refused", all - admitted), ("held", 0.0)]
    };
    let hint = |column: &TimelineColumn| match (cores(column.cost), cores(column.cost_admitted)) {
        (all, admitted) if admitted < all => format!("{all:.2} cores, {admitted:.2} with the rules"),
        (all, _) => format!("{all:.2} cores"),
    };
    let svg = columns(summary, "Load of the backend", pieces, hint, summary.pricing.cores, |value| format!("{value}"));
    let mut entries = vec![("passed", "cores used by admitted requests")];
    if summary.decisions.done.saved_ms() > 0 {
        entries.push(("refused", "cores used by requests that the rules refuse"));
    }
    if summary.pricing.cores.is_some() {
        entries.push(("capacity", "cores of the backend"));
    }
    figure(&svg, summary, &legend(&entries))
}

/// A chart with its legend and the width of its columns.
fn figure(svg: &str, summary: &Summary, legend: &str) -> String {
    let width = escaped(&length(Span::from_millis(summary.timeline.column_ms)));
    format!("<figure>\n{svg}<p class=\"legend\">{legend}<span>each column is {width}</span></p>\n</figure>\n")
}

/// The legend. Each entry has the name of a colour in the style sheet, and a text.
fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(class, text): &(&str, &str)| {
        format!("<span><i style=\"background: var(--{class})\"></i>{}</span>", escaped(text))
    };
    entries.iter().map(entry).collect()
}

/// A chart with one column for each column of the timeline. `pieces` are stacked from the bottom to the top, `hint` is
/// shown for the column under the pointer, `capacity` is a horizontal line, and `label` formats the values of the axis.
fn columns(
    summary: &Summary,
    title: &str,
    pieces: impl Fn(&TimelineColumn) -> [Piece; 3],
    hint: impl Fn(&TimelineColumn) -> String,
    capacity: Option<f64>,
    label: impl Fn(f64) -> String,
) -> String {
    let timeline = &summary.timeline;
    let total = |column: &TimelineColumn| pieces(column).iter().map(|piece| piece.1).sum::<f64>();
    let highest = timeline.columns.iter().map(total).fold(0.0, f64::max);
    // A capacity far above the load would flatten it.
    let capacity = capacity.filter(|capacity| *capacity <= highest * 3.0);
    let top = round_up(highest.max(capacity.unwrap_or(0.0)));
    let y = |value: f64| ABOVE + (HEIGHT - ABOVE - BELOW) * (1.0 - value / top);
    let step = (WIDTH - LEFT) / timeline.columns.len().max(1) as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", escaped(title));
    for part in [0.0, 0.5, 1.0] {
        let (value, at) = (top * part, y(top * part));
        _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            escaped(&label(value))
        );
    }
    for (index, column) in timeline.columns.iter().enumerate() {
        let x = LEFT + step * index as f64;
        let at = Moment::from_millis(timeline.begin_at_ms + index as u64 * timeline.column_ms);
        let title = format!("{}: {}", dated_clock(at, timeline.column_ms < 60_000), hint(column));
        _ = write!(svg, "<g><title>{}</title>", escaped(&title));
        let mut below = 0.0;
        for (class, value) in pieces(column).into_iter().filter(|piece| piece.1 > 0.0) {
            let (bottom, height) = (y(below), y(below) - y(below + value));
            below += value;
            _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
                bottom - height,
                (step - 1.0).max(0.5)
            );
        }
        svg.push_str("</g>\n");
    }
    if let Some(capacity) = capacity {
        let at = y(capacity);
        _ = writeln!(svg, "<line class=\"capacity\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
    }
    svg.push_str(&time_axis(summary, step));
    svg.push_str("</svg>\n");
    svg
}

/// The labels below a chart whose columns are `step` wide.
fn time_axis(summary: &Summary, step: f64) -> String {
    let timeline = &summary.timeline;
    let every = (LABEL_WIDTH / step.max(0.1)).ceil().max(1.0) as usize;
    let mut svg = String::new();
    for index in (0..timeline.columns.len()).step_by(every) {
        let at = Moment::from_millis(timeline.begin_at_ms + index as u64 * timeline.column_ms);
        let with_seconds = timeline.column_ms < 60_000;
        let label = if summary.spans_days() { dated_clock(at, false) } else { clock(at, with_seconds) };
        let x = LEFT + step * index as f64;
        if x + LABEL_WIDTH / 2.0 <= WIDTH {
            _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>", HEIGHT - 6.0, escaped(&label));
        }
    }
    svg
}

/// The next round number, for the top of an axis.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let scale = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 10.0].into_iter().map(|step| step * scale).find(|round| *round >= value).unwrap_or(value)
}

//! The results of `tollgate-storm run` as an SVG picture: the slowest page of each second, failed views, and the
//! crawler's responses. Lengths are in units of the image.

use crate::results::{Results, SecondResults};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 440.0;
/// The left edge of both charts, after the labels.
const LEFT: f64 = 64.0;
/// The top and bottom of the upper chart, which has the pages of people.
const PAGES: (f64, f64) = (64.0, 250.0);
/// The top and bottom of the lower chart, which has the crawler.
const CRAWLER: (f64, f64) = (300.0, 400.0);
/// The range of page times, in powers of ten: 1 ms to 10 s.
const DECADES: f64 = 4.0;

/// An SVG image without external resources.
pub fn picture(results: &Results) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let storm = &results.storm;
    let title = format!(
        "{}: seed {}, {} crawler connections in {} networks",
        results.name, storm.seed, storm.connections, storm.networks
    );
    text(&mut svg, LEFT, 24.0, "start", "#1c2024", &title);
    text(&mut svg, LEFT, 44.0, "start", "#60646c", &verdict(results));
    let end_s = (storm.calm_s + storm.storm_s + storm.recovery_s).max(1.0);
    let x = |second: f64| LEFT + (WIDTH - LEFT - 16.0) * second / end_s;
    for (top, bottom) in [PAGES, CRAWLER] {
        let (from, until) = (x(storm.calm_s), x(storm.calm_s + storm.storm_s));
        _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#f1f2f4\"/>",
            until - from,
            bottom - top
        );
    }
    pages(&mut svg, &results.seconds, &x);
    crawler(&mut svg, &results.seconds, &x);
    let labels = 6;
    for index in 0..=labels {
        let second = end_s * f64::from(index) / f64::from(labels);
        text(&mut svg, x(second), HEIGHT - 12.0, "middle", "#60646c", &format!("{second:.0} s"));
    }
    svg.push_str("</svg>\n");
    svg
}

/// The summary below the title.
fn verdict(results: &Results) -> String {
    let Some(storm) = results.phase("storm") else { return String::new() };
    let share = |served: u64, views: u64| 100.0 * served as f64 / views.max(1) as f64;
    format!(
        "in the storm: people {:.1} % served, page p99 {:.0} ms; office {:.1} % served, page p99 {:.0} ms",
        share(storm.people.served, storm.people.views),
        storm.people.page_ms.p99,
        share(storm.office.served, storm.office.views),
        storm.office.page_ms.p99
    )
}

/// The upper chart; `x` is the position of a second.
fn pages(svg: &mut String, seconds: &[SecondResults], x: &impl Fn(f64) -> f64) {
    let (top, bottom) = PAGES;
    let y = |ms: f64| bottom - (bottom - top) * (ms.max(1.0).log10() / DECADES).clamp(0.0, 1.0);
    for (ms, label) in [(1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1000.0, "1 s"), (10_000.0, "10 s")] {
        axis(svg, y(ms), label);
    }
    for (index, second) in seconds.iter().enumerate().filter(|(_, second)| second.views > 0) {
        let failed = second.views - second.served;
        let colour = if failed > 0 { "#c9372c" } else { "#3b7dd8" };
        _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>second {index}: {} of {} views served, \
             slowest page {:.0} ms</title></circle>",
            x(index as f64 + 0.5),
            y(second.page_max_ms),
            second.served,
            second.views,
            second.page_max_ms
        );
    }
    text(svg, WIDTH - 16.0, top - 6.0, "end", "#60646c", "slowest page of each second; red: a view failed");
}

/// The lower chart: stacked bars of pages and refusals per second.
fn crawler(svg: &mut String, seconds: &[SecondResults], x: &impl Fn(f64) -> f64) {
    let (top, bottom) = CRAWLER;
    let total = |second: &SecondResults| second.crawler_answered + second.crawler_refused;
    let highest = seconds.iter().map(total).max().unwrap_or(0).max(1) as f64;
    let width = (x(1.0) - x(0.0) - 1.0).max(0.5);
    for (index, second) in seconds.iter().enumerate() {
        let mut below = bottom;
        for (count, colour) in [(second.crawler_answered, "#d99a1c"), (second.crawler_refused, "#8b919c")] {
            let height = (bottom - top) * count as f64 / highest;
            below -= height;
            if count > 0 {
                let left = x(index as f64);
                _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{below:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
                );
            }
        }
    }
    axis(svg, bottom, "0/s");
    axis(svg, top, &format!("{highest:.0}/s"));
    text(svg, WIDTH - 16.0, top - 6.0, "end", "#60646c", "crawler: pages received (yellow), refused (grey)");
}

/// A horizontal line with its label.
fn axis(svg: &mut String, y: f64, label: &str) {
    _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#d9dce1\"/>",
        WIDTH - 16.0
    );
    text(svg, LEFT - 6.0, y + 4.0, "end", "#60646c", label);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_results_and_escapes_names() {
        let svg = picture(&crate::results::tests::example());
        assert!(svg.contains("people 50.0 % served, page p99 5000 ms"), "{svg}");
        assert!(svg.contains("&lt;gate&gt; &amp; \"co\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }
}

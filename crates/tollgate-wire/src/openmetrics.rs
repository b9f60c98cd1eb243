//! Parses the OpenMetrics text of `/metrics`. The OTLP export converts that text, so that the metrics are listed only
//! once in the code.

use std::collections::HashMap;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only increases.
    Counter,
    /// A distribution of values over buckets.
    Histogram,
}

/// A metric with all its label sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Family<'a> {
    /// The name, without `_total`.
    pub name: &'a str,
    /// The help text.
    pub help: &'a str,
    /// The type.
    pub kind: MetricKind,
    /// The values.
    pub series: Vec<Series<'a>>,
}

/// A metric with one label set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series<'a> {
    /// The labels, without `le`.
    pub labels: Vec<(&'a str, String)>,
    /// The value; the sum of a histogram.
    pub value: f64,
    /// The upper bounds of a histogram's buckets with their cumulative counts. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

/// Parses metrics. Other types and invalid lines are skipped.
pub fn read(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut help = HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help.extend(rest.split_once(' '));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let kind = match kind {
                "gauge" => MetricKind::Gauge,
                "counter" => MetricKind::Counter,
                "histogram" => MetricKind::Histogram,
                _ => continue,
            };
            families.push(Family { name, help: help.get(name).copied().unwrap_or_default(), kind, series: Vec::new() });
        } else if let (Some(family), Some(sample)) = (families.last_mut(), Sample::read(line)) {
            family.add(sample);
        }
    }
    families
}

/// One line with a value. The name has a suffix such as `_total` or `_bucket`.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = rest.trim_start().split(' ').next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }
}

/// Labels up to the closing brace, and the rest.
fn read_labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name, value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

impl<'a> Family<'a> {
    fn add(&mut self, sample: Sample<'a>) {
        let Some(suffix) = sample.name.strip_prefix(self.name) else { return };
        let Sample { mut labels, value, .. } = sample;
        let bound = labels.iter().position(|(name, _)| *name == "le").map(|place| labels.remove(place).1);
        let bound = bound.and_then(|bound| bound.parse().ok());
        // The lines of one label set are adjacent.
        if self.series.last().is_none_or(|last| last.labels != labels) {
            self.series.push(Series { labels, ..Series::default() });
        }
        let Some(series) = self.series.last_mut() else { return };
        match (self.kind, suffix, bound) {
            (MetricKind::Gauge, "", _) | (MetricKind::Counter, "_total", _) | (MetricKind::Histogram, "_sum", _) => {
                series.value = value
            }
            (MetricKind::Histogram, "_bucket", Some(bound)) => series.buckets.push((bound, value as u64)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# HELP requests Requests that came.\n# TYPE requests counter\nrequests_total 12\n\
        # HELP up Whether a backend is up.\n# TYPE up gauge\nup{backend=\"http://a/\",x=\"\\\"\\\\\\n}\"} 1\n\
        up{backend=\"b\"} 0.5\n\
        # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\nwait_seconds_sum 2.5\nwait_seconds_count 3\n\
        wait_seconds_bucket{le=\"0.1\"} 1\nwait_seconds_bucket{le=\"+Inf\"} 3\n\
        # TYPE odd stateset\nodd 1\n# EOF\n";

    #[test]
    fn metrics_are_parsed_with_labels_and_buckets() {
        let families = read(TEXT);
        let names: Vec<_> = families.iter().map(|family| (family.name, family.help, family.kind)).collect();
        assert_eq!(
            names,
            [
                ("requests", "Requests that came.", MetricKind::Counter),
                ("up", "Whether a backend is up.", MetricKind::Gauge),
                ("wait_seconds", "Waits.", MetricKind::Histogram),
            ]
        );
        assert_eq!(families[0].series[0].value, 12.0);
        let labels = vec![("backend", "http://a/".to_owned()), ("x", "\"\\\n}".to_owned())];
        assert_eq!((&families[1].series[0].labels, families[1].series[0].value), (&labels, 1.0));
        assert_eq!(families[1].series[1].value, 0.5);
        assert_eq!(families[2].series.len(), 1);
        assert_eq!(
            (families[2].series[0].value, &families[2].series[0].buckets[..]),
            (2.5, &[(0.1, 1), (f64::INFINITY, 3)][..])
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(# (TYPE|HELP) [a-z]{1,3} \
            (counter|gauge|histogram)|[a-z_]{1,9}(\\{[a-z=\",\\\\}]{0,20})? ?[0-9.+Inf-]{0,5}|\n){0,30}") {
            read(&text);
        }
    }
}

//! Figures as text, read back: what `/metrics` shows is what others are sent, so that there is one list of figures and not two.

use std::collections::HashMap;

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only goes up.
    Counter,
    /// How often values were within bounds.
    Histogram,
}

/// One figure, for every set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Family<'a> {
    /// Its name, without `_total`.
    pub name: &'a str,
    /// What it means.
    pub help: &'a str,
    /// What it is.
    pub kind: Kind,
    /// Its values.
    pub series: Vec<Series<'a>>,
}

/// A figure for one set of labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series<'a> {
    /// The labels, without the bounds of a histogram.
    pub labels: Vec<(&'a str, String)>,
    /// The value; the sum of a histogram.
    pub value: f64,
    /// The upper bounds of a histogram with how many were within each, those of smaller ones included. The last has no bound.
    pub buckets: Vec<(f64, u64)>,
}

/// Reads figures. What is of another kind, or cannot be read, is left out.
pub fn read(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut help = HashMap::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# HELP ") {
            help.extend(said.split_once(' '));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|said| said.split_once(' ')) {
            let kind = match kind {
                "gauge" => Kind::Gauge,
                "counter" => Kind::Counter,
                "histogram" => Kind::Histogram,
                _ => continue,
            };
            families.push(Family { name, help: help.get(name).copied().unwrap_or_default(), kind, series: Vec::new() });
        } else if let (Some(family), Some(sample)) = (families.last_mut(), Sample::read(line)) {
            family.add(sample);
        }
    }
    families
}

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
        let value = rest.trim_start().split(' ').next()?;
        let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
        Some(Self { name, labels, value })
    }
}

/// Labels up to the closing brace, and what follows it.
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
        let Some(part) = sample.name.strip_prefix(self.name) else { return };
        let Sample { mut labels, value, .. } = sample;
        let bound = labels.iter().position(|(name, _)| *name == "le").map(|place| labels.remove(place).1);
        let bound = bound.and_then(|bound| if bound == "+Inf" { Some(f64::INFINITY) } else { bound.parse().ok() });
        // Lines of one set of labels follow each other.
        if self.series.last().is_none_or(|last| last.labels != labels) {
            self.series.push(Series { labels, ..Series::default() });
        }
        let Some(series) = self.series.last_mut() else { return };
        match (self.kind, part, bound) {
            (Kind::Gauge, "", _) | (Kind::Counter, "_total", _) | (Kind::Histogram, "_sum", _) => series.value = value,
            (Kind::Histogram, "_bucket", Some(bound)) => series.buckets.push((bound, value as u64)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# HELP requests Requests that came.\n# TYPE requests counter\nrequests_total 12\n\
        # HELP up Whether a backend is up.\n# TYPE up gauge\nup{backend=\"http://a/\",x=\"\\\"\\\\\\n}\"} 1\nup{backend=\"b\"} 0.5\n\
        # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\nwait_seconds_sum 2.5\nwait_seconds_count 3\n\
        wait_seconds_bucket{le=\"0.1\"} 1\nwait_seconds_bucket{le=\"+Inf\"} 3\n\
        # TYPE odd stateset\nodd 1\n# EOF\n";

    #[test]
    fn figures_are_read_with_their_labels_and_bounds() {
        let families = read(TEXT);
        let names: Vec<_> = families.iter().map(|family| (family.name, family.help, family.kind)).collect();
        assert_eq!(
            names,
            [
                ("requests", "Requests that came.", Kind::Counter),
                ("up", "Whether a backend is up.", Kind::Gauge),
                ("wait_seconds", "Waits.", Kind::Histogram),
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
        fn no_text_is_too_odd_to_be_read(text in "(# (TYPE|HELP) [a-z]{1,3} (counter|gauge|histogram)|[a-z_]{1,9}(\\{[a-z=\",\\\\}]{0,20})? ?[0-9.+Inf-]{0,5}|\n){0,30}") {
            read(&text);
        }
    }
}

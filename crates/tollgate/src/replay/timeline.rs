//! The counts of a recording over time, in a bounded number of columns, for the charts of the summary.
//!
//! The duration of a recording is known only at its end. Therefore columns start with a width of one second, and
//! neighbours are merged when there are too many. Widths and starts are round clock times, such as "from 14:00"
//! instead of "from 13:47:12".

use serde::{Serialize, Serializer};
use tollgate_core::band::Band;
use tollgate_core::time::{Moment, Span};

use super::counts::as_millis;

/// Columns are merged beyond this number.
const COLUMNS_MAX: u64 = 1536;
/// The widths of columns while counting, in seconds. Each is a multiple of the one before. Further ones double.
const WIDTHS_S: [u64; 10] = [1, 5, 15, 60, 300, 900, 3600, 10_800, 43_200, 86_400];
/// The widths of columns in the output, in seconds.
const SHOWN_WIDTHS_S: [u64; 24] = [
    1, 2, 5, 10, 15, 20, 30, 60, 90, 120, 180, 300, 600, 900, 1200, 1800, 3600, 5400, 7200, 10_800, 14_400, 21_600,
    43_200, 86_400,
];

/// A recording in columns of equal width.
pub(super) struct Timeline {
    /// The width of a column, in seconds.
    width_s: u64,
    /// The index of the first column, counted from the origin of time.
    first: u64,
    columns: Vec<TimelineColumn>,
}

/// The counts of one column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct TimelineColumn {
    /// The number of requests.
    pub(super) requests: u64,
    /// The number of held requests.
    pub(super) held: u64,
    /// The number of refused requests.
    pub(super) refused: u64,
    /// The cost of all requests.
    #[serde(rename = "cost_ms", serialize_with = "as_millis")]
    pub(super) cost: Span,
    /// The cost of the admitted requests.
    #[serde(rename = "cost_admitted_ms", serialize_with = "as_millis")]
    pub(super) cost_admitted: Span,
    /// The worst band.
    #[serde(serialize_with = "as_name")]
    pub(super) band: Band,
}

/// A timeline for output.
#[derive(Debug, Serialize)]
pub(super) struct TimelineSummary {
    /// The start of the first column, on the clock of the recording, in milliseconds.
    pub(super) begin_at_ms: u64,
    /// The width of each column, in milliseconds.
    pub(super) column_ms: u64,
    /// The columns.
    pub(super) columns: Vec<TimelineColumn>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self { width_s: 1, first: 0, columns: Vec::new() }
    }

    /// The column of a moment, which is not before the first column.
    #[inline]
    pub(super) fn at(&mut self, at: Moment) -> &mut TimelineColumn {
        let second = at.as_nanos() / 1_000_000_000;
        if self.columns.is_empty() {
            self.first = second / self.width_s;
        }
        loop {
            let index = (second / self.width_s).saturating_sub(self.first);
            if index < self.columns.len() as u64 {
                return &mut self.columns[index as usize];
            }
            if index < COLUMNS_MAX {
                self.columns.resize(index as usize + 1, TimelineColumn::default());
            } else {
                let wider = WIDTHS_S.into_iter().find(|width_s| *width_s > self.width_s).unwrap_or(self.width_s * 2);
                *self = self.widened(wider);
            }
        }
    }

    /// The timeline in wider columns, whose width is a multiple of this one.
    fn widened(&self, width_s: u64) -> Self {
        let mut wider = Self { width_s, first: self.first * self.width_s / width_s, columns: Vec::new() };
        for (index, column) in self.columns.iter().enumerate() {
            let place = ((self.first + index as u64) * self.width_s / width_s - wider.first) as usize;
            wider.columns.resize(place + 1, TimelineColumn::default());
            wider.columns[place].add(column);
        }
        wider
    }

    /// The timeline for output, in at most `columns_max` columns, of which there are at least 2.
    pub(super) fn drawn(&self, columns_max: usize) -> TimelineSummary {
        let doubled = std::iter::successors(Some(2 * 86_400), |width_s: &u64| width_s.checked_mul(2));
        let fits = SHOWN_WIDTHS_S.into_iter().chain(doubled).filter(|width_s| width_s.is_multiple_of(self.width_s));
        let widened = fits.map(|width_s| self.widened(width_s)).find(|wider| wider.columns.len() <= columns_max.max(2));
        let Self { width_s, first, columns } = widened.unwrap_or_else(Self::new);
        TimelineSummary { begin_at_ms: first * width_s * 1000, column_ms: width_s * 1000, columns }
    }
}

impl TimelineColumn {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.held += other.held;
        self.refused += other.refused;
        self.cost = self.cost + other.cost;
        self.cost_admitted = self.cost_admitted + other.cost_admitted;
        self.band = self.band.max(other.band);
    }
}

fn as_name<S: Serializer>(band: &Band, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(band.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_number_of_columns_is_bounded_for_any_duration() {
        let mut timeline = Timeline::new();
        timeline.at(Moment::from_millis(3_600_000)).requests += 1;
        timeline.at(Moment::MAX).requests += 1;
        assert!(timeline.columns.len() <= COLUMNS_MAX as usize);
        assert_eq!(timeline.drawn(56).columns.iter().map(|column| column.requests).sum::<u64>(), 2);
    }

    #[test]
    fn columns_have_round_widths_and_starts() {
        for (span_s, width_s) in
            [(50, 1), (600, 15), (3600, 90), (86_400, 1800), (7 * 86_400, 10_800), (365 * 86_400, 8 * 86_400)]
        {
            let mut timeline = Timeline::new();
            let begin_s = 1_794_441_600 + 17;
            for step in 0..1000 {
                timeline.at(Moment::from_millis((begin_s + step * span_s / 1000) * 1000)).requests += 1;
            }
            let drawing = timeline.drawn(56);
            assert_eq!(drawing.column_ms, width_s * 1000, "{span_s}");
            assert!(drawing.begin_at_ms.is_multiple_of(drawing.column_ms));
            assert!(drawing.columns.len() <= 56);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_everything_stays_in_its_place(
            begin_ms in 0u64..2_000_000_000_000,
            steps in prop::collection::vec((0u64..5_000_000, 1u64..5), 1..200),
            most in 2usize..100,
        ) {
            let mut timeline = Timeline::new();
            let mut at_ms = begin_ms;
            let mut all = Vec::new();
            for (step_ms, requests) in steps {
                at_ms += step_ms;
                timeline.at(Moment::from_millis(at_ms)).requests += requests;
                all.push((at_ms, requests));
            }
            let drawing = timeline.drawn(most);
            prop_assert!(drawing.columns.len() <= most);
            for (index, column) in drawing.columns.iter().enumerate() {
                let begin_ms = drawing.begin_at_ms + index as u64 * drawing.column_ms;
                let within = |at_ms: &u64| (begin_ms..begin_ms + drawing.column_ms).contains(at_ms);
                let expect: u64 = all.iter().filter(|(at_ms, _)| within(at_ms)).map(|(_, requests)| requests).sum();
                prop_assert_eq!(column.requests, expect);
            }
        }
    }
}

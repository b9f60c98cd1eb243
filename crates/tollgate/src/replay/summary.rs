//! The result of a replay as data. `--json` prints it with these field names; the page and the HTML report format it.

use serde::Serialize;
use tollgate_core::limit::Limit;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_wire::log::LineError;

use super::counts::{Done, ReplayCounts, millis};
use super::player::Player;
use super::pricing::PricingSummary;
use super::replay_watch::SetFlag;
use super::suggestion::{self, Suggestion};
use super::talkers::CLASSES;
use super::terminal_text::{date, length};
use super::timeline::TimelineSummary;

/// The maximum number of listed clients that were held or refused.
const THROTTLED_MAX: usize = 20;
/// The maximum number of heavy clients of each class.
const TALKERS_MAX: usize = 10;
/// The maximum number of columns of the timeline.
const COLUMNS_MAX: usize = 56;

/// The result of a replay. Times (`..._at_ms`) are on the recording's clock, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) recording: Recording,
    pub(super) requests: u64,
    /// The time of the first line; `None` if there is none.
    pub(super) first_at_ms: Option<u64>,
    /// The time from the first line to the last.
    pub(super) span_ms: u64,
    /// The cost of all requests; `None` if the recording has no costs.
    pub(super) cost_ms: Option<u64>,
    pub(super) pricing: PricingSummary,
    pub(super) oddities: Oddities,
    pub(super) decisions: Decisions,
    pub(super) rules: Vec<RuleSummary>,
    /// The clients that were held or refused most often.
    pub(super) throttled: Vec<ThrottledSummary>,
    pub(super) flags: Vec<SetFlag>,
    /// The clients with the highest cost, by class.
    pub(super) talkers: Vec<TalkersSummary>,
    pub(super) timeline: TimelineSummary,
    pub(super) suggestion: Option<Suggestion>,
}

/// Lines that could not be parsed.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Unreadable {
    pub(super) lines: u64,
    /// The first few of them.
    pub(super) first: Vec<UnreadableLine>,
}

/// A line that could not be parsed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnreadableLine {
    pub(super) line: u64,
    pub(super) column: u32,
    pub(super) expected: String,
}

/// Unusual properties of the recording.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Oddities {
    /// Lines that were sorted by time.
    pub(super) sorted: u64,
    /// Lines with an earlier time than the line before, processed at that line's time.
    pub(super) out_of_order: u64,
    /// Requests without a cost, which count as free.
    pub(super) without_cost: u64,
    /// Requests without a valid request line.
    pub(super) garbled: u64,
    /// Requests whose client has a name instead of an address.
    pub(super) named_clients: u64,
    /// Requests that ended early, because too many were in flight.
    pub(super) cut_short: u64,
    /// Keys evicted from a table that was too small. Their debt stays in the overflow record.
    pub(super) evicted: u64,
}

/// Decisions by kind.
#[derive(Debug, Serialize)]
pub(super) struct Decisions {
    /// Requests that were neither held nor refused.
    pub(super) admitted: u64,
    #[serde(flatten)]
    pub(super) done: Done,
    pub(super) hold_ms_mean: u64,
    pub(super) hold_ms_max: u64,
}

/// One rule and its effect.
#[derive(Debug, Serialize)]
pub(super) struct RuleSummary {
    pub(super) name: String,
    pub(super) class: String,
    pub(super) limit: String,
    /// Whether the rule is in observe mode.
    pub(super) observes: bool,
    #[serde(flatten)]
    pub(super) done: Done,
}

/// One client that was held or refused: a key of a rule.
#[derive(Debug, Serialize)]
pub(super) struct ThrottledSummary {
    pub(super) rule: String,
    pub(super) class: String,
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) done: Done,
    pub(super) first_at_ms: u64,
    pub(super) last_at_ms: u64,
    pub(super) episodes: u64,
}

/// The heaviest clients of one class.
#[derive(Debug, Serialize)]
pub(super) struct TalkersSummary {
    pub(super) class: &'static str,
    pub(super) heaviest: Vec<TalkerSummary>,
}

/// A heavy client.
#[derive(Debug, Serialize)]
pub(super) struct TalkerSummary {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) cost_ms: u64,
    pub(super) busiest_minute_cost_ms: u64,
    pub(super) busiest_minute_requests: u64,
}

/// The file of a summary and its lines.
#[derive(Debug, Serialize)]
pub(super) struct Recording {
    pub(super) file: String,
    pub(super) format: &'static str,
    pub(super) gzip: bool,
    /// Whether a configuration was given.
    pub(super) configured: bool,
    pub(super) lines: u64,
    pub(super) unreadable: Unreadable,
}

impl Summary {
    /// The summary of a recording. `sorted` is the number of lines that were sorted by time.
    pub(super) fn new(
        recording: Recording,
        sorted: u64,
        player: &Player,
        pricing: PricingSummary,
        tally: ReplayCounts,
    ) -> Self {
        let origin = player.origin.unwrap_or(Moment::ZERO);
        let rules: Vec<_> = player.limiter.rules().collect();
        let at_ms = |since_origin: Moment| (origin + since_origin.since(Moment::ZERO)).as_nanos() / 1_000_000;
        let has_costs = tally.oddities.without_cost < tally.requests;
        let total = if has_costs { millis(tally.cost) } else { tally.requests };
        Self {
            recording,
            requests: tally.requests,
            first_at_ms: player.origin.map(|origin| origin.as_nanos() / 1_000_000),
            span_ms: millis(player.now.since(Moment::ZERO)),
            cost_ms: has_costs.then(|| millis(tally.cost)),
            oddities: Oddities {
                sorted,
                out_of_order: player.backwards,
                cut_short: player.cut_short(),
                evicted: (0..rules.len()).filter_map(|at| player.limiter.table(at)).map(|table| table.evicted).sum(),
                ..tally.oddities
            },
            decisions: Decisions::new(&tally),
            rules: rules.iter().zip(&tally.rules).map(|(rule, done)| RuleSummary::new(rule, done)).collect(),
            throttled: throttled(&tally, &rules, at_ms),
            talkers: (0..CLASSES.len()).map(|index| TalkersSummary::new(&tally, index)).collect(),
            timeline: tally.timeline.drawn(COLUMNS_MAX),
            suggestion: suggestion::suggest(&tally.talkers, total, has_costs, pricing.cores),
            flags: tally.watched.into_flags(origin),
            pricing,
        }
    }

    /// Whether the recording spans more than one day, so that times need dates.
    pub(super) fn spans_days(&self) -> bool {
        let day = |at_ms: u64| date(Moment::from_millis(at_ms));
        self.first_at_ms.is_some_and(|first| day(first) != day(first.saturating_add(self.span_ms)))
    }

    /// Whether budgets have no effect, because no request has a cost.
    pub(super) fn budgets_are_blind(&self) -> bool {
        self.requests > 0 && self.cost_ms.is_none()
    }
}

impl Unreadable {
    /// The maximum number of lines shown.
    const FIRST_MAX: usize = 5;

    /// Counts a line that could not be parsed.
    pub(super) fn add(&mut self, line: u64, fault: LineError) {
        self.lines += 1;
        if self.first.len() < Self::FIRST_MAX {
            self.first.push(UnreadableLine { line, column: fault.column, expected: fault.expected.to_string() });
        }
    }
}

impl Decisions {
    fn new(tally: &ReplayCounts) -> Self {
        let done = &tally.done;
        Self {
            admitted: tally.requests - done.held - done.refused,
            done: *done,
            hold_ms_mean: millis(tally.hold_total).checked_div(done.held).unwrap_or(0),
            hold_ms_max: tally.hold_max.as_millis_ceil(),
        }
    }
}

impl RuleSummary {
    fn new(rule: &Rule, done: &Done) -> Self {
        Self {
            name: rule.name.clone(),
            class: rule.class.to_string(),
            limit: limit_text(&rule.limit),
            observes: rule.mode == Mode::Observe,
            done: *done,
        }
    }
}

fn throttled(tally: &ReplayCounts, rules: &[&Rule], at_ms: impl Fn(Moment) -> u64) -> Vec<ThrottledSummary> {
    let listed = tally.throttled.heaviest().into_iter().take(THROTTLED_MAX);
    let summary = |(_, place): (u64, &super::heavy_hitters::HeavyHitter<super::counts::Throttled>)| {
        let rule = rules[place.fact.rule];
        ThrottledSummary {
            rule: rule.name.clone(),
            class: rule.class.to_string(),
            key: place.name.to_string(),
            done: place.fact.done,
            first_at_ms: at_ms(place.fact.first),
            last_at_ms: at_ms(place.fact.last),
            episodes: place.fact.episodes,
        }
    };
    listed.map(summary).collect()
}

impl TalkersSummary {
    /// The heaviest clients of the class with this index in [`CLASSES`].
    fn new(tally: &ReplayCounts, index: usize) -> Self {
        let listed = tally.talkers.heaviest(index).into_iter().take(TALKERS_MAX);
        let heaviest = listed.map(|(name, spending)| TalkerSummary {
            key: name.to_string(),
            requests: spending.requests,
            cost_ms: millis(spending.cost),
            busiest_minute_cost_ms: millis(spending.peak_cost),
            busiest_minute_requests: spending.peak_requests,
        });
        Self { class: CLASSES[index], heaviest: heaviest.collect() }
    }
}

/// A limit in short form.
fn limit_text(limit: &Limit) -> String {
    let per = |span: Span| match span {
        span if span == Span::from_secs(1) => "/s".to_string(),
        span if span == Span::from_secs(60) => "/min".to_string(),
        span if span == Span::from_secs(3600) => "/h".to_string(),
        span => format!(" per {}", length(span)),
    };
    match limit {
        Limit::Budget(budget) => {
            let (millionths, burst) = budget.parameters();
            format!("{} cores, burst {}", f64::from(millionths) / 1e6, length(burst))
        }
        Limit::Rate(rate) => {
            let (count, period, burst) = rate.parameters();
            format!("{count}{}, burst {burst}", per(period))
        }
        Limit::Bucket(bucket) => {
            let (size, drip, every) = bucket.parameters();
            format!("{size}, drips {drip}{}", per(every))
        }
        Limit::Window(window) => {
            let (max, span, _) = window.parameters();
            format!("{max} in {}", length(span))
        }
        Limit::InFlight(in_flight) => format!("{} at once", in_flight.max()),
    }
}

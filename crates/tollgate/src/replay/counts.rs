//! Counts the requests and decisions of a replay in constant memory. The summary is made from these counts.

use serde::{Serialize, Serializer};
use tollgate_core::class::Class;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::time::{Moment, Span};

use super::heavy_hitters::HeavyHitters;
use super::key_name::{KeyName, key_hash};
use super::player::Player;
use super::recorded_request::RecordedRequest;
use super::replay_watch::ReplayWatch;
use super::summary::Oddities;
use super::talkers::Talkers;
use super::timeline::Timeline;

/// Number of sets of eight slots ([`HeavyHitters`]) for clients that were held or refused.
const THROTTLED_SETS: usize = 64;

/// The effect of decisions: of all, of one rule, or on one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Done {
    /// The number of held requests.
    pub(super) held: u64,
    /// The number of refused requests.
    pub(super) refused: u64,
    /// The number of requests that a rule in observe mode would have held.
    pub(super) would_hold: u64,
    /// The number of requests that a rule in observe mode would have refused.
    pub(super) would_refuse: u64,
    /// The cost of the refused requests.
    #[serde(rename = "cost_saved_ms", serialize_with = "as_millis")]
    pub(super) saved: Span,
}

/// The effect of one rule on one client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throttled {
    /// The index of the rule.
    pub(super) rule: usize,
    /// The effect.
    pub(super) done: Done,
    /// The time of the first effect, since the start of the recording.
    pub(super) first: Moment,
    /// The time of the last effect, since the start of the recording.
    pub(super) last: Moment,
    /// The number of episodes: periods of refusals without a long pause.
    pub(super) episodes: u64,
    /// The time of the last refusal.
    last_refused: Option<Moment>,
}

/// All counts of a replay.
pub(super) struct ReplayCounts {
    pub(super) requests: u64,
    /// The cost of all requests, refused ones included.
    pub(super) cost: Span,
    /// The sum of all holds.
    pub(super) hold_total: Span,
    /// The longest hold.
    pub(super) hold_max: Span,
    /// The oddities that are counted request by request; the others are 0.
    pub(super) oddities: Oddities,
    /// The effect of all decisions.
    pub(super) done: Done,
    /// The effect of each rule, by its index.
    pub(super) rules: Vec<Done>,
    pub(super) throttled: HeavyHitters<Throttled>,
    pub(super) talkers: Talkers,
    pub(super) timeline: Timeline,
    pub(super) watched: ReplayWatch,
    /// The class of each rule, by its index.
    classes: Vec<Class>,
}

impl ReplayCounts {
    /// Creates empty counts for rules of these classes.
    pub(super) fn new(classes: Vec<Class>, watched: ReplayWatch) -> Self {
        Self {
            requests: 0,
            cost: Span::ZERO,
            hold_total: Span::ZERO,
            hold_max: Span::ZERO,
            oddities: Oddities::default(),
            done: Done::default(),
            rules: vec![Done::default(); classes.len()],
            throttled: HeavyHitters::new(THROTTLED_SETS),
            talkers: Talkers::new(),
            timeline: Timeline::new(),
            watched,
            classes,
        }
    }

    /// Counts a request and the decision about it. A request without a `known_cost` counts as free.
    #[inline]
    pub(super) fn add(
        &mut self,
        request: &RecordedRequest<'_>,
        known_cost: Option<Span>,
        decision: &Decision,
        player: &Player,
    ) {
        let now = player.now;
        let line = request.line;
        let cost = known_cost.unwrap_or(Span::ZERO);
        self.requests += 1;
        self.cost = self.cost + cost;
        self.oddities.without_cost += u64::from(known_cost.is_none());
        self.oddities.garbled += u64::from(line.target.is_none());
        self.oddities.named_clients += u64::from(request.client_name().is_some());
        let done = Done::of(decision, cost);
        self.talkers.add(request, cost, &done, now);
        let column = self.timeline.at(player.clock());
        column.requests += 1;
        column.held += done.held;
        column.refused += done.refused;
        column.cost = column.cost + cost;
        column.cost_admitted = column.cost_admitted + if done.refused == 0 { cost } else { Span::ZERO };
        column.band = column.band.max(player.band);
        if !done.is_nothing() {
            self.add_throttled(request, decision, done, now);
        }
    }

    fn add_throttled(&mut self, request: &RecordedRequest<'_>, decision: &Decision, done: Done, now: Moment) {
        let hold = decision.verdict.hold(now);
        self.hold_total = self.hold_total + hold;
        self.hold_max = self.hold_max.max(hold);
        self.done.add(done);
        let Some(rule) = decision.rule else { return };
        self.rules[rule].add(done);
        let class = &self.classes[rule];
        let Some(hash) = key_hash(class, request) else { return };
        // Includes the rule, because two rules may have the same key.
        let throttled = self.throttled.add(hash.rotate_left(rule as u32 + 1), 1, |name| name.rewrite(class, request));
        if throttled.done.is_nothing() {
            (throttled.rule, throttled.first) = (rule, now);
        }
        throttled.done.add(done);
        throttled.last = now;
        if done.refused > 0 {
            let is_new_episode = throttled.last_refused.is_none_or(|last| now.since(last) > self.watched.calm);
            throttled.episodes += u64::from(is_new_episode);
            throttled.last_refused = Some(now);
            self.watched.refused((rule, hash), now, || KeyName::of(class, request));
        }
    }
}

impl Done {
    /// The cost of the refused requests, in milliseconds.
    pub(super) const fn saved_ms(&self) -> u64 {
        millis(self.saved)
    }

    /// The effect of a decision on one request of this cost.
    fn of(decision: &Decision, cost: Span) -> Self {
        let mut done = Self::default();
        match (decision.verdict, decision.reason) {
            (Verdict::Admit, Reason::WouldHold) => done.would_hold = 1,
            (Verdict::Admit, Reason::WouldRefuse) => done.would_refuse = 1,
            (Verdict::Admit, _) => {}
            (Verdict::Hold(_), _) => done.held = 1,
            (Verdict::Refuse(_) | Verdict::RefuseUntilRelease | Verdict::RefuseForGood, _) => {
                done.refused = 1;
                done.saved = cost;
            }
        }
        done
    }

    fn add(&mut self, other: Self) {
        self.held += other.held;
        self.refused += other.refused;
        self.would_hold += other.would_hold;
        self.would_refuse += other.would_refuse;
        self.saved = self.saved + other.saved;
    }

    /// Whether there was no effect.
    pub(super) const fn is_nothing(&self) -> bool {
        self.held + self.refused + self.would_hold + self.would_refuse == 0
    }
}

/// The span in whole milliseconds.
pub(super) const fn millis(span: Span) -> u64 {
    span.as_nanos() / 1_000_000
}

/// Serializes a span in whole milliseconds.
pub(super) fn as_millis<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(millis(*span))
}

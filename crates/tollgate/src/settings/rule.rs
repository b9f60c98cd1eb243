//! A rule of the file, and what it means.

use std::ops::Range;

use tollgate_core::class::Class;
use tollgate_core::limit::{Factor, Limit};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use tollgate_gatekeeper::shared::{OnTimeout, SharedRule, slice_of};
use tollgate_gatekeeper::table::table_bytes_min;

use super::condition::ConditionTable;
use super::escalation::EscalationTable;
use super::fault::Collector;
use super::limit::{BucketTable, BudgetTable, InFlightMax, LegacyTable, RateTable, WindowTable, fit, nonzero};
use super::table::{Placed, table};
use super::value::{Choice, Millionths, Name, Size, StatusCode, Thousandths};

/// A rule, and what the core need not know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleSettings {
    /// What the core decides by.
    pub(crate) rule: Rule,
    /// Where the state of its keys lives.
    pub(crate) state: State,
    /// What masters call it, if not by its domain and name.
    pub(crate) wire_domain: Option<String>,
    /// The status of its refusals, if not the usual one.
    pub(crate) status: Option<u16>,
    /// Whether answers tell the client about this limit.
    pub(crate) headers: bool,
    /// How much of the limit a gate takes from Redis ahead of need, in millionths.
    pub(crate) lease_millionths: Option<u32>,
    /// What happens to a request about which Redis does not decide in time.
    pub(crate) on_timeout: OnTimeout,
    /// Bytes of memory for the state of its keys.
    pub(crate) memory_bytes: u64,
}

/// Where the state of a rule's keys lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// In this gate's memory.
    #[default]
    Local,
    /// On Redis: exact across gates.
    Redis,
    /// In this gate's memory, and at the master, which tells gates whom to delay.
    Master,
}

impl Choice for State {
    const WORDS: &'static [(&'static str, Self)] =
        &[("local", Self::Local), ("redis", Self::Redis), ("master", Self::Master)];
}

impl Choice for OnTimeout {
    const WORDS: &'static [(&'static str, Self)] =
        &[("local", Self::Local), ("wait", Self::Wait), ("refuse", Self::Refuse)];
}

impl Choice for Mode {
    const WORDS: &'static [(&'static str, Self)] = &[("enforce", Self::Enforce), ("observe", Self::Observe)];
}

table! {
    /// When it applies, how callers are told apart, exactly one limit, and what to do. All rules that apply to a request are looked at,
    /// then all are charged; the strictest decides. The limit is one of `budget`, `rate`, `bucket`, `window`, `in_flight` and `legacy`.
    struct RuleTable {
        /// What people call the rule, in logs, metrics and answers. No other rule of the domain has it.
        name: Name = required,
        /// What a request must be like for the rule to apply. Without it the rule applies to every request.
        when: ConditionTable,
        /// What a request must not be like for the rule to apply.
        unless: ConditionTable,
        /// How callers are told apart: `ip/32`, `ip/24`, `ip/16` (64, 56 and 48 bits of IPv6; other pairs as `ip/20,52`), `user-agent`,
        /// `header:NAME`, `cookie:NAME`, `query:NAME`, `json:/POINTER` (a value of a JSON body of at most 16 KiB), `path` (numbers and hashes in it count as one), `host`, `method`, `identifier` (what a gatekeeper or a caller names),
        /// `descriptor:NAME`, or several joined by `+`, as in `method+path`. The rule does not apply to a request that has no such key.
        class: Class = required,
        /// CPU-seconds per second for each key.
        budget: BudgetTable,
        /// Requests per time for each key, with a burst.
        rate: RateTable,
        /// A leaking bucket for each key.
        bucket: BucketTable,
        /// Requests in any window of time for each key.
        window: WindowTable,
        /// How many requests of one key may be at work at once: a number, or a table with `max`. Open websockets and event streams are not at work.
        in_flight: InFlightMax,
        /// So many per duration for each key, so far apart, or both.
        legacy: LegacyTable,
        /// Scales the limit's size and rate together: 0.5 allows twice as much, 2 half as much. A window's `ceiling` stays.
        factor: Thousandths,
        /// How the penalty grows for a key that goes on offending.
        escalation: EscalationTable,
        /// For how long after the start only a window's `ceiling` applies, so that a fleet that reconnects after a restart is not throttled.
        warmup: Span,
        /// The longest that a request is held back until there is room for it; one that would have to wait longer is refused. `0s` refuses at once.
        /// Without it 5s for `budget` and `rate`, 0s for the others, and never longer than `max` of `hold` in `[gate]`.
        hold: Span,
        /// `enforce` holds and refuses, `observe` decides and counts but lets pass.
        mode: Mode = "\"enforce\"",
        /// Where the state of the keys lives: `local` is this gate's memory, `redis` is exact across gates, `master`, for `rate` and `budget` only, is
        /// local with a master that tells all gates whom to delay.
        state: State = "\"local\"",
        /// With `state = "master"` or the class `identifier`, the domain that masters keep this rule's books under. Without it, the domain's name and the rule's with
        /// a slash between, as in `default/login`; with the class `identifier`, the domain's name. For original Smockron masters and gatekeepers, the name of their
        /// domain, such as `default`.
        wire_domain: Name,
        /// The status of refusals, from 400 to 599. Without it 429, or 503 where the backend's load is the reason.
        status: StatusCode,
        /// Whether answers carry this limit's figures, admitted ones too.
        headers: bool = "true",
        /// With `state = "redis"`, the part of a bucket, rate or window that a gate takes ahead of need, at most 1, to decide from memory. A caller may get
        /// more than the limit by what is leased to it, at most this part per gate. Without it every request asks Redis.
        lease: Millionths,
        /// With `state = "redis"`, what happens to a request about which Redis does not decide within `redis.deadline`. `local`: this gate's own state
        /// decides. `wait`: the answer is waited for for up to `redis.wait`, then this gate's own state decides; while Redis counts as down, nothing is
        /// waited for. `refuse`: 503 with `Retry-After`, also while Redis is down. Without it, `local`.
        on_timeout: OnTimeout,
        /// Memory for the state of this rule's keys: 27 to 30 bytes a key, more with `window` and `escalation`. Without it, an equal part of
        /// `gate.memory`.
        memory: Size,
    }
}

/// What a rule must agree with elsewhere in the file.
pub(super) struct Surroundings {
    /// What the backend has.
    pub(super) cores: Cores,
    /// The longest hold of any request at the gate.
    pub(super) hold_max: Span,
    /// The memory of a rule that does not say how much it takes.
    pub(super) memory_bytes: u64,
    /// Whether the file says where Redis is.
    pub(super) redis: bool,
    /// Whether the file says where a master is, or is a master's.
    pub(super) master: bool,
    /// The class whose keys are accounts, if requests have such keys.
    pub(super) account: Option<Class>,
}

/// The keys of a rule's limit.
const LIMITS: [&str; 6] = ["budget", "rate", "bucket", "window", "in_flight", "legacy"];
/// How long `budget` and `rate` hold a request if the rule does not say.
const HOLD_DEFAULT: Span = Span::from_secs(5);

impl Placed<RuleTable> {
    /// The rule, or the two rules that a legacy limit can be, or none if something is wrong with it.
    pub(super) fn meaning(self, around: &Surroundings, faults: &mut Collector) -> Vec<RuleSettings> {
        let limits = self.limits(around, faults);
        let escalation = self.value.escalation.as_ref().map(|escalation| escalation.meaning(faults));
        self.check_state(around, faults);
        let hold = self.hold(around, faults);
        let warmup = self.value.warmup.as_ref().map(|warmup| nonzero(warmup, faults));
        let table = self.value;
        // A legacy limit refuses, even where one half of what it means is a rate.
        let holds = table.legacy.is_none();
        let when = table.when.map(|when| when.value.meaning(around, faults)).unwrap_or_default();
        let unless =
            table.unless.map(|unless| unless.value.meaning(around, faults)).filter(|unless| !unless.is_empty());
        let (Some(name), Some(class)) = (table.name, table.class) else { return Vec::new() };
        if escalation == Some(None) || warmup == Some(None) {
            return Vec::new();
        }
        let settings = |limit: Limit| RuleSettings {
            rule: Rule {
                name: name.value.0.clone(),
                when: when.clone(),
                unless: unless.clone(),
                class: class.value.clone(),
                limit,
                escalation: escalation.flatten(),
                warmup: warmup.flatten(),
                hold_max: hold.unwrap_or(if holds { default_hold(&limit, around.hold_max) } else { Span::ZERO }),
                mode: table.mode.value,
            },
            state: table.state.value,
            wire_domain: table.wire_domain.as_ref().map(|domain| domain.value.0.clone()),
            status: table.status.as_ref().map(|status| status.value.0),
            headers: table.headers.value,
            lease_millionths: table.lease.as_ref().map(|lease| lease.value.0),
            on_timeout: table.on_timeout.as_ref().map_or_else(OnTimeout::default, |on_timeout| on_timeout.value),
            memory_bytes: table.memory.as_ref().map_or(around.memory_bytes, |memory| memory.value.0),
        };
        let rules: Vec<_> = limits.into_iter().map(settings).collect();
        let memory_span = table.memory.as_ref().map_or(&self.span, |memory| &memory.span);
        for rule in &rules {
            rule.refuse_unshareable(&table.state.span, faults);
            if let Some(lease) = &table.lease {
                rule.refuse_unleasable(&lease.span, faults);
            }
            rule.refuse_cramped(memory_span, faults);
        }
        rules
    }

    /// The limit that the rule has, under its factor.
    fn limits(&self, around: &Surroundings, faults: &mut Collector) -> Vec<Limit> {
        let table = &self.value;
        let mut found: Vec<(&str, &Range<usize>)> = Vec::new();
        let mut limits: Vec<Limit> = Vec::new();
        if let Some(budget) = &table.budget {
            found.push(("budget", &budget.span));
            limits.extend(budget.limit(around.cores, faults));
        }
        if let Some(rate) = &table.rate {
            found.push(("rate", &rate.span));
            limits.extend(rate.limit(faults));
        }
        if let Some(bucket) = &table.bucket {
            found.push(("bucket", &bucket.span));
            limits.extend(bucket.limit(faults));
        }
        if let Some(window) = &table.window {
            found.push(("window", &window.span));
            limits.extend(window.limit(faults));
        }
        if let Some(in_flight) = &table.in_flight {
            found.push(("in_flight", &in_flight.span));
            limits.extend(in_flight.limit(faults));
        }
        if let Some(legacy) = &table.legacy {
            found.push(("legacy", &legacy.span));
            limits.extend(legacy.limits(faults));
        }
        self.refuse_several(found, faults);
        self.scaled(limits, faults)
    }

    fn refuse_several(&self, mut found: Vec<(&str, &Range<usize>)>, faults: &mut Collector) {
        found.sort_by_key(|(_, span)| span.start);
        match found.as_slice() {
            [] if LIMITS.iter().any(|limit| self.value.written.has(limit)) => {}
            [] => {
                let message = format!("a rule needs a limit: write one of `{}`", LIMITS.join("`, `"));
                faults.missing(&self.span, message);
            }
            [(first, _), others @ ..] => {
                for (other, span) in others {
                    let message = format!(
                        "a rule has one limit and this has `{first}` already: move `{other}` to a rule of its own"
                    );
                    faults.fault(span, message);
                }
            }
        }
    }

    fn scaled(&self, limits: Vec<Limit>, faults: &mut Collector) -> Vec<Limit> {
        let Some(factor) = &self.value.factor else { return limits };
        let scaled = |limit: Limit| Factor::new(factor.value.0).and_then(|factor| limit.scaled(factor));
        limits.into_iter().filter_map(|limit| fit(scaled(limit), factor, faults)).collect()
    }

    fn check_state(&self, around: &Surroundings, faults: &mut Collector) {
        let state = &self.value.state;
        if state.value == State::Redis && !around.redis {
            faults.missing(
                &state.span,
                "`state = \"redis\"` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there",
            );
        }
        if state.value == State::Master && !around.master {
            faults.missing(
                &state.span,
                "`state = \"master\"` needs to know where a master is: write `[[link.master]]` with `accounting = \"127.0.0.1:10004\"`",
            );
        }
        // A master accounts for identifiers whatever their rule's `state` is.
        let is_for_master = state.value == State::Master
            || self.value.class.as_ref().is_some_and(|class| class.value.to_string() == "identifier");
        if let Some(domain) = self.value.wire_domain.as_ref().filter(|_| !is_for_master) {
            faults.fault(&domain.span, "`wire_domain` needs `state = \"master\"` beside it: nobody else is told of it");
        }
        if let Some(on_timeout) = self.value.on_timeout.as_ref().filter(|_| state.value != State::Redis) {
            let message = "`on_timeout` needs `state = \"redis\"` beside it: nothing else is waited for";
            faults.fault(&on_timeout.span, message);
        }
        let Some(lease) = &self.value.lease else { return };
        if state.value != State::Redis {
            faults
                .fault(&lease.span, "`lease` needs `state = \"redis\"` beside it: there is nothing else to lease from");
        } else if lease.value.0 > 1_000_000 {
            faults.fault(&lease.span, "a lease is a part of the limit, at most 1: write a number such as 0.1");
        }
    }

    /// The longest hold that the rule asks for.
    fn hold(&self, around: &Surroundings, faults: &mut Collector) -> Option<Span> {
        let hold = self.value.hold.as_ref()?;
        if hold.value > around.hold_max {
            let message = format!(
                "the gate holds no request longer than {}ms: write less here, or more as `max` of `hold` in `[gate]`",
                around.hold_max.as_millis_ceil()
            );
            faults.fault(&hold.span, message);
        }
        Some(hold.value)
    }
}

impl RuleTable {
    /// How many tables of keys it takes from the memory that all rules share.
    pub(super) fn tables(&self) -> usize {
        let both = |legacy: &Placed<LegacyTable>| legacy.value.max.is_some() && legacy.value.min_interval.is_some();
        match self.memory {
            Some(_) => 0,
            None => 1 + usize::from(self.legacy.as_ref().is_some_and(both)),
        }
    }
}

impl RuleSettings {
    /// The domain that masters keep this rule's books under, in the domain of this name.
    pub(crate) fn domain_at_master(&self, domain: &str) -> String {
        self.wire_domain.clone().unwrap_or_else(|| format!("{domain}/{}", self.rule.name))
    }

    /// Reports a rule that Redis cannot keep exactly, or a master not at all.
    fn refuse_unshareable(&self, state: &Range<usize>, faults: &mut Collector) {
        match self.state {
            State::Local => return,
            State::Master if matches!(self.rule.limit, Limit::Rate(_) | Limit::Budget(_)) => return,
            State::Master => {
                return faults.fault(state, "a master keeps rates and budgets only: write `rate`, or another `state`");
            }
            State::Redis => {}
        }
        if let Err(unshareable) = SharedRule::new("", "", self.rule.clone()) {
            faults.fault(state, format!("{unshareable}: write other figures, or `state = \"local\"`"));
        }
    }

    /// Reports a rule of which nothing can be taken ahead.
    fn refuse_unleasable(&self, lease: &Range<usize>, faults: &mut Collector) {
        let Some(millionths) = self.lease_millionths.filter(|_| self.state == State::Redis) else { return };
        if let Err(unleasable) = slice_of(&self.rule, millionths) {
            faults.fault(lease, format!("{unleasable}: leave `lease` out, or write another limit or part"));
        }
    }

    /// Reports a rule that has not even the memory for a few keys.
    fn refuse_cramped(&self, memory: &Range<usize>, faults: &mut Collector) {
        let (bytes, bytes_min) = (self.memory_bytes, table_bytes_min(&self.rule) as u64);
        if bytes < bytes_min {
            let message = format!(
                "the keys of this rule take {bytes_min} bytes at the least, and have {bytes}: write a larger `memory`"
            );
            faults.fault(memory, message);
        }
    }
}

fn default_hold(limit: &Limit, most: Span) -> Span {
    match limit {
        Limit::Budget(_) | Limit::Rate(_) => HOLD_DEFAULT.min(most),
        Limit::Bucket(_) | Limit::Window(_) | Limit::InFlight(_) => Span::ZERO,
    }
}

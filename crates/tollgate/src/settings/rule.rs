//! `[[rule]]`: a limit on the requests of each key of a class, such as each client address.
//!
//! [`RuleTable`] is the table in the file. It is converted to [`RuleSettings`]: a [`Rule`], which the core evaluates,
//! and the settings beside it.

use std::ops::Range;

use tollgate_core::class::Class;
use tollgate_core::condition::Condition;
use tollgate_core::limit::{Factor, InFlight, Limit};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::site::SiteHosts;
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use tollgate_gatekeeper::shared::{OnTimeout, SharedRule, slice_of};
use tollgate_gatekeeper::table::table_bytes_min;

use super::condition::ConditionTable;
use super::error::ErrorCollector;
use super::escalation::EscalationTable;
use super::limit::{BucketTable, BudgetTable, InFlightMax, LegacyTable, RateTable, WindowTable, fit};
use super::table::{Located, table};
use super::value::{Choice, Millionths, Name, OneOrMany, PositiveSpan, Size, StatusCode, Thousandths};

/// A rule as the core evaluates it, and the settings of the rule that the core does not need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleSettings {
    /// The conditions, class, limit and penalty.
    pub(crate) rule: Rule,
    /// The location of the state of its keys.
    pub(crate) state: StateLocation,
    /// Its name at masters, if the file sets one. None: see [`RuleSettings::domain_at_master`].
    pub(crate) wire_domain: Option<String>,
    /// The HTTP status of its refusals. None: 429, or 503 if the reason is the load of the backend.
    pub(crate) status: Option<u16>,
    /// Whether responses carry the rate limit headers of this rule.
    pub(crate) headers: bool,
    /// The part of the limit that a gate leases from Redis in advance, in millionths. None: each decision calls Redis.
    pub(crate) lease_millionths: Option<u32>,
    /// The fallback if Redis does not decide in time.
    pub(crate) on_timeout: OnTimeout,
    /// Memory for the state of its keys, in bytes.
    pub(crate) memory_bytes: u64,
}

/// The location of the state of a rule's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StateLocation {
    /// In this gate's memory.
    #[default]
    Local,
    /// On Redis: exact across gates.
    Redis,
    /// In this gate's memory, and at a master, to which all gates report and which sends delays to all of them.
    Master,
}

impl Choice for StateLocation {
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
    /// A rule: a condition, a class, exactly one limit, and an action. All rules that apply to a request are evaluated,
    /// then all are charged; the strictest decides. The limit is one of `budget`, `rate`, `bucket`, `window`,
    /// `in_flight` and `legacy`.
    struct RuleTable {
        /// The name of the rule in logs, metrics and responses. It is unique in its domain.
        name: Name = required,
        /// The rule applies to requests that match this condition. Default: every request.
        when: ConditionTable,
        /// The rule does not apply to requests that match this condition, or one of a list of conditions.
        unless: OneOrMany<ConditionTable>,
        /// The property that identifies a client; each value is a key with a limit of its own. `ip/32`, `ip/24`,
        /// `ip/16` (64, 56 and 48 bits of IPv6; other prefix lengths as `ip/20,52`), `user-agent`, `header:NAME`,
        /// `cookie:NAME`, `query:NAME`, `json:/POINTER` (a value of a JSON body of at most 16 KiB), `path` (numbers and
        /// hashes in it are replaced by a placeholder), `host`, `method`, `identifier` (from a gatekeeper or the caller
        /// of a door), `descriptor:NAME`, or several joined by `+`, as in `method+path`. The rule does not apply to a
        /// request without the property.
        class: Class = required,
        /// CPU-seconds per second for each key.
        budget: BudgetTable,
        /// Requests per time for each key, with a burst.
        rate: RateTable,
        /// A leaky bucket for each key.
        bucket: BucketTable,
        /// Requests in a sliding window for each key.
        window: WindowTable,
        /// Maximum number of requests of one key in flight: a number, or a table with `max`. Open websockets and event
        /// streams do not count.
        in_flight: InFlightMax,
        /// A number of requests per duration for each key, a minimum interval, or both.
        legacy: LegacyTable,
        /// Divides the size and the rate of the limit: 0.5 allows twice as much, 2 half as much. The `ceiling` of a
        /// window is not scaled.
        factor: Thousandths,
        /// Longer blocks for a key that exceeds its limit repeatedly.
        escalation: EscalationTable,
        /// Time after the start during which only the `ceiling` of a window applies, so that a fleet that reconnects
        /// after a restart is not throttled.
        warmup: PositiveSpan,
        /// Maximum time that the rule holds a request; a request that would have to wait longer is refused. `0s`
        /// refuses at once. Default: 5s for `budget` and `rate`, 0s for the others, and at most `max` of `hold` in
        /// `[gate]`.
        hold: Span,
        /// `enforce` holds and refuses requests, `observe` decides and counts but admits them.
        mode: Mode = "\"enforce\"",
        /// The location of the state of the keys. `local`: this gate's memory. `redis`: exact across gates. `master`,
        /// for `rate` and `budget` only: local, and a master sends delays to all gates.
        state: StateLocation = "\"local\"",
        /// With `state = "master"` or the class `identifier`, the name of this rule at masters. Default: the name of
        /// the domain, a slash and the name of the rule, as in `default/login`; with the class `identifier`, the name
        /// of the domain. For original Smockron masters and gatekeepers, the name of their domain, such as `default`.
        wire_domain: Name,
        /// The status of refusals, from 400 to 599. Default: 429, or 503 if the reason is the load of the backend.
        status: StatusCode,
        /// Whether responses carry the rate limit headers of this rule, those of admitted requests too.
        headers: bool = "true",
        /// With `state = "redis"`, the part of a bucket, rate or window that a gate leases in advance, at most 1, to
        /// decide without a round trip. A key may exceed its limit by at most this part per gate. Default: every
        /// decision calls Redis.
        lease: Millionths,
        /// With `state = "redis"`, the fallback if Redis does not decide within `redis.deadline`. `local`: the state of
        /// this gate decides. `wait`: the gate waits for up to `redis.wait`, then its own state decides; while Redis is
        /// down, it does not wait. `refuse`: 503 with `Retry-After`, also while Redis is down. Default: `local`.
        on_timeout: OnTimeout,
        /// Memory for the state of this rule's keys: 27 to 30 bytes per key, more with `window` and `escalation`.
        /// Default: an equal part of `gate.memory`.
        memory: Size,
    }
}

/// Settings outside of a rule that its conversion depends on.
#[derive(Clone)]
pub(super) struct RuleContext {
    /// The cores of all backends together; for a rule of a site, those of the site's backends.
    pub(super) cores: Cores,
    /// The hosts of the site to whose requests the rule is limited. None: the rule applies to all hosts.
    pub(super) site: Option<SiteHosts>,
    /// The value of `gate.hold.max`.
    pub(super) hold_max: Span,
    /// The memory of a rule without `memory`, in bytes.
    pub(super) memory_bytes: u64,
    /// Whether the file has a `[link]` or `[master]` table.
    pub(super) has_master: bool,
    /// The class whose keys are accounts. None if `watch.account_class` is not a class of requests.
    pub(super) account: Option<Class>,
}

/// The keys of a rule's limit.
const LIMITS: [&str; 6] = ["budget", "rate", "bucket", "window", "in_flight", "legacy"];
/// The default of `hold` for `budget` and `rate`.
const HOLD_DEFAULT: Span = Span::from_secs(5);

impl Located<RuleTable> {
    /// The rule; two rules for a `legacy` limit that becomes two limits; none after an error.
    pub(super) fn resolve(self, context: &RuleContext, errors: &mut ErrorCollector) -> Vec<RuleSettings> {
        let limits = self.limits(context, errors);
        let escalation = self.value.escalation.as_ref().map(|escalation| escalation.resolve(errors));
        self.check_state(context, errors);
        let hold = self.hold(context, errors);
        let table = self.value;
        // A legacy limit never holds, although one of its two rules is a rate.
        let holds = table.legacy.is_none();
        let when = table.when.map(|when| when.value.resolve(context, errors)).unwrap_or_default();
        let when = Condition { site: context.site.clone(), ..when };
        let unless = ConditionTable::resolve_all(table.unless, context, errors);
        let (Some(name), Some(class)) = (table.name, table.class) else { return Vec::new() };
        if escalation == Some(None) {
            return Vec::new();
        }
        let settings = |limit: Limit| RuleSettings {
            rule: Rule {
                name: name.value.clone(),
                when: when.clone(),
                unless: unless.clone(),
                class: class.value.clone(),
                limit,
                escalation: escalation.flatten(),
                warmup: table.warmup.as_ref().map(|warmup| warmup.value),
                hold_max: hold.unwrap_or(if holds { default_hold(&limit, context.hold_max) } else { Span::ZERO }),
                mode: table.mode.value,
            },
            state: table.state.value,
            wire_domain: table.wire_domain.as_ref().map(|domain| domain.value.clone()),
            status: table.status.as_ref().map(|status| status.value),
            headers: table.headers.value,
            lease_millionths: table.lease.as_ref().map(|lease| lease.value),
            on_timeout: table.on_timeout.as_ref().map_or_else(OnTimeout::default, |on_timeout| on_timeout.value),
            memory_bytes: table.memory.as_ref().map_or(context.memory_bytes, |memory| memory.value),
        };
        let rules: Vec<_> = limits.into_iter().map(settings).collect();
        let memory_span = table.memory.as_ref().map_or(&self.span, |memory| &memory.span);
        for rule in &rules {
            rule.refuse_unshareable(&table.state.span, errors);
            if let Some(lease) = &table.lease {
                rule.refuse_unleasable(&lease.span, errors);
            }
            rule.refuse_cramped(memory_span, errors);
        }
        rules
    }

    /// The limit of the rule, scaled by its factor. A legacy limit can be two.
    fn limits(&self, context: &RuleContext, errors: &mut ErrorCollector) -> Vec<Limit> {
        let table = &self.value;
        let in_flight =
            |max: &Located<u32>, errors: &mut _| fit(InFlight::new(max.value), max, errors).map(Limit::InFlight);
        let found = [
            table.budget.as_ref().map(|one| ("budget", &one.span, Vec::from_iter(one.limit(context.cores, errors)))),
            table.rate.as_ref().map(|one| ("rate", &one.span, Vec::from_iter(one.limit(errors)))),
            table.bucket.as_ref().map(|one| ("bucket", &one.span, Vec::from_iter(one.limit(errors)))),
            table.window.as_ref().map(|one| ("window", &one.span, Vec::from_iter(one.limit(errors)))),
            table.in_flight.as_ref().map(|one| ("in_flight", &one.span, Vec::from_iter(in_flight(one, errors)))),
            table.legacy.as_ref().map(|one| ("legacy", &one.span, one.limits(errors))),
        ];
        self.refuse_several(found.iter().flatten().map(|(key, span, _)| (*key, *span)).collect(), errors);
        let limits = found.into_iter().flatten().flat_map(|(_, _, limits)| limits).collect();
        self.scaled(limits, errors)
    }

    /// Reports no limit and several limits. `found` are the keys of the valid limits and their positions.
    fn refuse_several(&self, mut found: Vec<(&str, &Range<usize>)>, errors: &mut ErrorCollector) {
        found.sort_by_key(|(_, span)| span.start);
        match found.as_slice() {
            [] if LIMITS.iter().any(|limit| self.value.written.has(limit)) => {}
            [] => {
                let message = format!("a rule needs a limit: write one of `{}`", LIMITS.join("`, `"));
                errors.missing(&self.span, message);
            }
            [(first, _), others @ ..] => {
                for (other, span) in others {
                    let message = format!(
                        "a rule has one limit and this has `{first}` already: move `{other}` to a rule of its own"
                    );
                    errors.report(span, message);
                }
            }
        }
    }

    /// The limits, divided by the rule's `factor`.
    fn scaled(&self, limits: Vec<Limit>, errors: &mut ErrorCollector) -> Vec<Limit> {
        let Some(factor) = &self.value.factor else { return limits };
        let scaled = |limit: Limit| Factor::new(factor.value).and_then(|factor| limit.scaled(factor));
        limits.into_iter().filter_map(|limit| fit(scaled(limit), factor, errors)).collect()
    }

    /// Reports a `state` without the table that it needs, and keys that have no effect with this `state`.
    fn check_state(&self, context: &RuleContext, errors: &mut ErrorCollector) {
        let state = &self.value.state;
        if state.value == StateLocation::Redis {
            errors.need_redis(&state.span, "`state = \"redis\"`");
        }
        if state.value == StateLocation::Master && !context.has_master {
            errors.missing(
                &state.span,
                "`state = \"master\"` needs the address of a master: write `[[link.master]]` with \
                 `accounting = \"127.0.0.1:10004\"`",
            );
        }
        // A master accounts for the class `identifier` with any `state`.
        let is_for_master = state.value == StateLocation::Master
            || self.value.class.as_ref().is_some_and(|class| class.value.to_string() == "identifier");
        if let Some(domain) = self.value.wire_domain.as_ref().filter(|_| !is_for_master) {
            errors.report(&domain.span, "`wire_domain` needs `state = \"master\"`: it is a name at masters");
        }
        if let Some(on_timeout) = self.value.on_timeout.as_ref().filter(|_| state.value != StateLocation::Redis) {
            let message = "`on_timeout` needs `state = \"redis\"`: no other state has a timeout";
            errors.report(&on_timeout.span, message);
        }
        let Some(lease) = &self.value.lease else { return };
        if state.value != StateLocation::Redis {
            errors.report(&lease.span, "`lease` needs `state = \"redis\"`: only Redis grants leases");
        } else if lease.value > 1_000_000 {
            errors.report(&lease.span, "a lease is a part of the limit, at most 1: write a number such as 0.1");
        }
    }

    /// The value of `hold`. Reports one that is longer than `gate.hold.max`.
    fn hold(&self, context: &RuleContext, errors: &mut ErrorCollector) -> Option<Span> {
        let hold = self.value.hold.as_ref()?;
        if hold.value > context.hold_max {
            let message = format!(
                "the gate holds no request longer than {}ms: write less here, or more as `max` of `hold` in `[gate]`",
                context.hold_max.as_millis_ceil()
            );
            errors.report(&hold.span, message);
        }
        Some(hold.value)
    }
}

impl RuleTable {
    /// Number of key tables of the rule that share `gate.memory`: 0 if the rule has a `memory` of its own.
    pub(super) fn tables(&self) -> usize {
        let both = |legacy: &Located<LegacyTable>| legacy.value.max.is_some() && legacy.value.min_interval.is_some();
        match self.memory {
            Some(_) => 0,
            None => 1 + usize::from(self.legacy.as_ref().is_some_and(both)),
        }
    }
}

impl RuleSettings {
    /// The name of this rule at masters, given the name of its domain: `wire_domain`, or else `DOMAIN` for the class
    /// `identifier`, and `DOMAIN/RULE` for others.
    pub(crate) fn domain_at_master(&self, domain: &str) -> String {
        let default = || match self.rule.class.to_string() == "identifier" {
            true => domain.to_owned(),
            false => format!("{domain}/{}", self.rule.name),
        };
        self.wire_domain.clone().unwrap_or_else(default)
    }

    /// Reports a rule whose limit Redis or a master cannot keep. `state` is the position of the key `state`.
    fn refuse_unshareable(&self, state: &Range<usize>, errors: &mut ErrorCollector) {
        match self.state {
            StateLocation::Local => return,
            StateLocation::Master if matches!(self.rule.limit, Limit::Rate(_) | Limit::Budget(_)) => return,
            StateLocation::Master => {
                return errors.report(state, "a master keeps rates and budgets only: write `rate`, or another `state`");
            }
            StateLocation::Redis => {}
        }
        if let Err(unshareable) = SharedRule::new("", "", self.rule.clone()) {
            errors.report(state, format!("{unshareable}: write other values, or `state = \"local\"`"));
        }
    }

    /// Reports a rule whose limit cannot be leased.
    fn refuse_unleasable(&self, lease: &Range<usize>, errors: &mut ErrorCollector) {
        let Some(millionths) = self.lease_millionths.filter(|_| self.state == StateLocation::Redis) else { return };
        if let Err(unleasable) = slice_of(&self.rule, millionths) {
            errors.report(lease, format!("{unleasable}: leave `lease` out, or write another limit or part"));
        }
    }

    /// Reports a rule whose memory is too small for its smallest table of keys.
    fn refuse_cramped(&self, memory: &Range<usize>, errors: &mut ErrorCollector) {
        let (bytes, bytes_min) = (self.memory_bytes, table_bytes_min(&self.rule) as u64);
        if bytes < bytes_min {
            let message = format!(
                "the keys of this rule need at least {bytes_min} bytes, and have {bytes}: write a larger `memory`"
            );
            errors.report(memory, message);
        }
    }
}

/// The maximum hold of a rule without `hold`. `hold_max` is that of the gate.
fn default_hold(limit: &Limit, hold_max: Span) -> Span {
    match limit {
        Limit::Budget(_) | Limit::Rate(_) => HOLD_DEFAULT.min(hold_max),
        Limit::Bucket(_) | Limit::Window(_) | Limit::InFlight(_) => Span::ZERO,
    }
}

//! `[[priority]]`: requests that have another weight in the fair queue than 1, or that bypass it. The gate uses the
//! first priority that applies to a request.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use tollgate_core::condition::Condition;
use tollgate_core::request::Request;

use super::condition::ConditionTable;
use super::error::ErrorCollector;
use super::rule::RuleContext;
use super::table::{Located, table};
use super::value::{Name, OneOrMany, Thousandths};

/// One `[[priority]]`: a condition, and the precedence of the requests that match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    /// Its name.
    pub(crate) name: String,
    /// The requests that it applies to.
    when: Condition,
    /// The exceptions among them.
    unless: Vec<Condition>,
    /// The precedence of these requests.
    pub(crate) precedence: Precedence,
}

/// The precedence of requests in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// A factor on the client's share of the backend, in thousandths: 1000 is the weight of other requests.
    Weight(u32),
    /// The requests bypass the queue: they neither wait nor count.
    Exempt,
}

impl Priority {
    /// Whether it applies to `request`. Servers differ in how they interpret a path. An advantage (a weight above 1, or
    /// exemption) applies only if the request matches in every interpretation, a disadvantage if it matches in any.
    pub(crate) fn applies(&self, request: &impl Request) -> bool {
        let is_advantage = match self.precedence {
            Precedence::Exempt => true,
            Precedence::Weight(weight_milli) => weight_milli > 1000,
        };
        match is_advantage {
            true => self.when.must_hold(request) && !self.unless.iter().any(|unless| unless.may_hold(request)),
            false => self.when.may_hold(request) && !self.unless.iter().any(|unless| unless.must_hold(request)),
        }
    }

    /// The conditions of this priority.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        std::iter::once(&self.when).chain(&self.unless)
    }

    /// Whether it depends on whether the account of the request (`watch.account_class`) is flagged.
    pub(crate) fn looks_at_flags(&self) -> bool {
        self.conditions().any(|condition| condition.flagged.is_some())
    }
}

/// All priorities, in the order of the file.
pub(super) type Priorities = Vec<Located<PriorityTable>>;

/// Accepted weights, in thousandths.
const WEIGHT_MILLI: RangeInclusive<u32> = 100..=100_000;

table! {
    /// The weight of matching requests in the queue. The first priority that applies to a request is used; a request
    /// without one has weight 1. A client has a share of its own for each priority, so a client that has used up its
    /// share with searches still has its whole share for checkouts. A priority has `weight` or `exempt = true`. Rules
    /// apply to all requests, whatever their priority.
    struct PriorityTable {
        /// The name of the priority, unique in the file.
        name: Name = required,
        /// The priority applies to requests that match this condition. With `exempt` or a weight above 1, a request
        /// must match in every way in which a backend may interpret its path. Required with `exempt`. Default: every
        /// request that no earlier priority applies to.
        when: ConditionTable,
        /// The priority does not apply to requests that match this condition, or one of a list of conditions.
        unless: OneOrMany<ConditionTable>,
        /// Factor on the client's share of the backend for these requests, from 0.1 to 100. With 4, a client
        /// gets four times as much as others while the backend is busy.
        weight: Thousandths where WEIGHT_MILLI => "a weight is from 0.1 to 100: write a number such as 4",
        /// Whether these requests bypass the queue: they do not wait, do not count against the limit of requests in
        /// flight, are not charged, and the queue never refuses them. For health checks. Restrict `when` to a path or
        /// an address: any client can send exempt requests without limit.
        exempt: bool = "false",
    }
}

/// Converts all priorities of a file.
pub(super) fn resolve(tables: Priorities, context: &RuleContext, errors: &mut ErrorCollector) -> Vec<Priority> {
    let mut names = HashSet::new();
    for name in tables.iter().filter_map(|table| table.value.name.as_ref()) {
        if !names.insert(name.value.clone()) {
            errors.report(&name.span, "another priority has this name: write another");
        }
    }
    tables.into_iter().filter_map(|table| table.resolve(context, errors)).collect()
}

impl Located<PriorityTable> {
    fn resolve(self, context: &RuleContext, errors: &mut ErrorCollector) -> Option<Priority> {
        let precedence = self.precedence(errors);
        let (span, table) = (self.span, self.value);
        let when = table.when.map(|when| when.value.resolve(context, errors)).unwrap_or_default();
        let unless = ConditionTable::resolve_all(table.unless, context, errors);
        // A condition is also empty if its keys are invalid, which is reported already.
        let has_no_condition = when.is_empty() && (!table.written.has("when") || errors.is_empty());
        if precedence == Some(Precedence::Exempt) && has_no_condition {
            let message = "`exempt` needs a condition in `when`, because the queue does not limit exempt requests: \
                           write `when = { path = \"/healthz\" }`";
            errors.missing(&span, message);
        }
        Some(Priority { name: table.name?.value, when, unless, precedence: precedence? })
    }

    /// The value of `weight` or `exempt`. Reports both and neither.
    fn precedence(&self, errors: &mut ErrorCollector) -> Option<Precedence> {
        let PriorityTable { weight, exempt, written, .. } = &self.value;
        match (weight, exempt.value) {
            (Some(weight), true) => {
                let message = "an exempt request does not wait, so it has no weight: leave one of the two out";
                errors.refuse(&weight.span, message)
            }
            (Some(weight), false) => Some(Precedence::Weight(weight.value)),
            (None, true) => Some(Precedence::Exempt),
            (None, false) => {
                // An invalid value has the default and the position of the table, and is reported already.
                let is_invalid = written.has("exempt") && exempt.span == self.span;
                if !written.has("weight") && !is_invalid {
                    errors.missing(&self.span, "a priority needs `weight = 4` or `exempt = true`: write one of them");
                }
                None
            }
        }
    }
}

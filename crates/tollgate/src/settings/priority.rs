//! `[[priority]]`: requests that pay less or more than others for the backend's time, or do not wait at all.

use std::collections::HashSet;

use tollgate_core::condition::Condition;
use tollgate_core::request::Request;

use super::condition::ConditionTable;
use super::fault::Collector;
use super::rule::Surroundings;
use super::table::{Placed, table};
use super::value::{Name, Thousandths};

/// How requests of a kind take their turn in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    /// Its name.
    pub(crate) name: String,
    /// Requests that it applies to.
    when: Condition,
    /// Requests among those that it does not apply to.
    unless: Option<Condition>,
    /// What such requests get.
    pub(crate) precedence: Precedence,
}

/// What requests of a priority get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// A share of the backend that is multiplied by this, in thousandths.
    Weight(u32),
    /// They pass the queue.
    Exempt,
}

impl Priority {
    /// Whether it applies to `request`. Servers differ in how they read a path: an advantage is for requests that it applies to in every
    /// reading, and a disadvantage for requests that it applies to in any.
    pub(crate) fn applies(&self, request: &impl Request) -> bool {
        let is_advantage = match self.precedence {
            Precedence::Exempt => true,
            Precedence::Weight(weight_milli) => weight_milli > 1000,
        };
        match is_advantage {
            true => {
                self.when.must_hold(request) && !self.unless.as_ref().is_some_and(|unless| unless.may_hold(request))
            }
            false => {
                self.when.may_hold(request) && !self.unless.as_ref().is_some_and(|unless| unless.must_hold(request))
            }
        }
    }

    /// The conditions that it depends on.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        std::iter::once(&self.when).chain(&self.unless)
    }

    /// Whether it depends on the flag of the request's account.
    pub(crate) fn looks_at_flags(&self) -> bool {
        self.conditions().any(|condition| condition.flagged.is_some())
    }
}

/// All priorities, first match first.
pub(super) type Priorities = Vec<Placed<PriorityTable>>;

/// Bounds of a weight, in thousandths.
const WEIGHT_MILLI_MIN: u32 = 100;
const WEIGHT_MILLI_MAX: u32 = 100_000;

table! {
    /// How requests of a kind take their turn in the queue. The first priority that applies to a request is in force; a request that none applies to has
    /// weight 1. Requests of one priority are accounted apart from a client's other requests, so a client that has used up its share with searches
    /// still has all of its share for checkouts. A priority has `weight` or `exempt = true`. Rules apply to all requests, whatever their priority.
    struct PriorityTable {
        /// The name of the priority. No other priority has it.
        name: Name = required,
        /// What a request must be like. With `exempt` or a weight above 1, it must be so in every way in which a backend may read the path. Without
        /// `when` the priority applies to every request that no earlier one applies to.
        when: ConditionTable,
        /// What a request must not be like.
        unless: ConditionTable,
        /// The share of the backend that each client is due for such requests, as a multiple of the usual share, from 0.1 to 100. With 4, a client
        /// gets four times as much as others while the backend is scarce.
        weight: Thousandths,
        /// Whether such requests pass the queue: they do not wait, do not count against the limit of requests in flight, are not charged, and the queue never refuses them.
        /// For health checks. Name the path or the address that they come from: any client can use what is exempt, as often as it likes.
        exempt: bool = "false",
    }
}

/// The meaning of all priorities of a file.
pub(super) fn meaning(tables: Priorities, around: &Surroundings, faults: &mut Collector) -> Vec<Priority> {
    let mut names = HashSet::new();
    for name in tables.iter().filter_map(|table| table.value.name.as_ref()) {
        if !names.insert(name.value.0.clone()) {
            faults.fault(&name.span, "another priority has this name: write another");
        }
    }
    tables.into_iter().filter_map(|table| table.meaning(around, faults)).collect()
}

impl Placed<PriorityTable> {
    fn meaning(self, around: &Surroundings, faults: &mut Collector) -> Option<Priority> {
        let precedence = self.precedence(faults);
        let (span, table) = (self.span, self.value);
        let when = table.when.map(|when| when.value.meaning(around, faults)).unwrap_or_default();
        let unless =
            table.unless.map(|unless| unless.value.meaning(around, faults)).filter(|unless| !unless.is_empty());
        if precedence == Some(Precedence::Exempt) && when.is_empty() && !table.written.has("when") {
            let message = "exempt without `when` would exempt every request, and the queue would protect nothing: write `when = { path = \"/healthz\" }`";
            faults.missing(&span, message);
        }
        Some(Priority { name: table.name?.value.0, when, unless, precedence: precedence? })
    }

    fn precedence(&self, faults: &mut Collector) -> Option<Precedence> {
        let PriorityTable { weight, exempt, written, .. } = &self.value;
        match (weight, exempt.value) {
            (Some(weight), true) => {
                faults.fault(
                    &weight.span,
                    "an exempt request does not wait, so it has no weight: leave one of the two out",
                );
                None
            }
            (Some(weight), false) => {
                if !(WEIGHT_MILLI_MIN..=WEIGHT_MILLI_MAX).contains(&weight.value.0) {
                    faults.fault(&weight.span, "a weight is from 0.1 to 100: write a number such as 4");
                }
                Some(Precedence::Weight(weight.value.0))
            }
            (None, true) => Some(Precedence::Exempt),
            (None, false) => {
                if !written.has("weight") {
                    faults.missing(&self.span, "a priority needs `weight = 4` or `exempt = true`: write one of them");
                }
                None
            }
        }
    }
}

//! Domains: protected things, each with its own rules.

use std::collections::HashSet;

use tollgate_core::class::Class;

use super::fault::Collector;
use super::priority::{self, Priorities, Priority};
use super::rule::{RuleSettings, RuleTable, State, Surroundings};
use super::table::{Placed, table};
use super::value::Name;

/// A protected thing with its own rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// What masters and `tollgate replay --domain` call it.
    pub(crate) name: String,
    /// Its rules, in the order of the file. A legacy limit may have become two rules of the same name.
    pub(crate) rules: Vec<RuleSettings>,
    /// Which requests have another weight in the queue, first match first. Only the default domain has any.
    pub(crate) priorities: Vec<Priority>,
    /// The class whose keys are accounts, if any of the rules or priorities looks at their flags.
    pub(crate) account: Option<Class>,
}

/// The domain that rules outside of any `[[domain]]` belong to.
pub(crate) const DEFAULT_DOMAIN: &str = "default";

table! {
    /// A protected thing with its own rules, for doors, masters and `tollgate replay --domain`. A gate decides by the domain `default` alone.
    struct DomainTable {
        /// What callers of doors, masters and `tollgate replay --domain` call it. No other domain has it.
        name: Name = required,
        /// The rules of this domain. Written `[[domain.rule]]`, once for each.
        rule: Rules,
    }
}

/// The rules of a domain.
pub(super) type Rules = Vec<Placed<RuleTable>>;
/// All domains but the default one.
pub(super) type Domains = Vec<Placed<DomainTable>>;

/// The default domain with `rules`, then all others.
pub(super) fn meaning(
    (rules, priorities): (Rules, Priorities),
    domains: Domains,
    around: &Surroundings,
    faults: &mut Collector,
) -> Vec<Domain> {
    let priorities = priority::meaning(priorities, around, faults);
    let mut names = HashSet::new();
    let mut all = vec![Domain::new(DEFAULT_DOMAIN.to_string(), rules, priorities, around, faults)];
    for Placed { value: domain, .. } in domains {
        let name = domain.name.map_or_else(String::new, |name| {
            if name.value.0 == DEFAULT_DOMAIN {
                faults.fault(&name.span, "the domain `default` is there already: write its rules as `[[rule]]`");
            } else if !names.insert(name.value.0.clone()) {
                faults.fault(&name.span, "another domain has this name: write another, or join the two");
            }
            name.value.0
        });
        let rules = domain.rule.map(|rules| rules.value).unwrap_or_default();
        all.push(Domain::new(name, rules, Vec::new(), around, faults));
    }
    all
}

/// How many tables of keys all rules take from the memory that they share.
pub(super) fn tables(rules: &Rules, domains: &Domains) -> usize {
    let others = domains.iter().filter_map(|domain| domain.value.rule.as_ref()).flat_map(|rules| &rules.value);
    rules.iter().chain(others).map(|rule| rule.value.tables()).sum()
}

impl Domain {
    fn new(
        name: String,
        rules: Rules,
        priorities: Vec<Priority>,
        around: &Surroundings,
        faults: &mut Collector,
    ) -> Self {
        let mut names = HashSet::new();
        for name in rules.iter().filter_map(|rule| rule.value.name.as_ref()) {
            if !names.insert(name.value.0.clone()) {
                faults.fault(&name.span, "another rule of this domain has this name: write another");
            }
        }
        let spans: Vec<_> = rules.iter().map(|rule| rule.value.state.span.clone()).collect();
        let rules: Vec<_> = rules.into_iter().map(|rule| rule.meaning(around, faults)).collect();
        let mut at_master = HashSet::new();
        for (rules, span) in rules.iter().zip(&spans) {
            let linked = rules.iter().filter(|rule| rule.state == State::Master);
            if !linked.map(|rule| rule.domain_at_master(&name)).all(|domain| at_master.insert(domain)) {
                faults.fault(
                    span,
                    "another rule has this `wire_domain`, and their callers would be mixed up: write another",
                );
            }
        }
        let rules: Vec<_> = rules.into_iter().flatten().collect();
        let looks_at_flags = rules.iter().any(|settings| settings.rule.looks_at_flags())
            || priorities.iter().any(Priority::looks_at_flags);
        Self { name, rules, priorities, account: around.account.clone().filter(|_| looks_at_flags) }
    }
}

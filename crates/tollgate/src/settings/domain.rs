//! `[[domain]]`: named sets of rules.
//!
//! The gate uses only the rules outside of any `[[domain]]`, which form the domain [`DEFAULT_DOMAIN`], with the rules
//! of sites. Doors and masters select the domain that a request or report names, `tollgate replay` the one of
//! `--domain`.

use std::collections::HashSet;

use tollgate_core::class::Class;

use super::error::{ErrorCollector, shown};
use super::priority::{self, Priorities, Priority};
use super::rule::{RuleContext, RuleSettings, RuleTable, StateLocation};
use super::site::SiteRules;
use super::table::{Located, table};
use super::value::Name;

/// A set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Its name for masters, doors and `tollgate replay --domain`.
    pub(crate) name: String,
    /// Its rules, in the order of the file. A `legacy` limit can become two rules with the same name.
    pub(crate) rules: Vec<RuleSettings>,
    /// The priorities, in the order of the file. Only the default domain has any.
    pub(crate) priorities: Vec<Priority>,
    /// The class whose keys are accounts (`watch.account_class`), for conditions with `flagged`. None if no rule or
    /// priority has such a condition.
    pub(crate) account: Option<Class>,
}

/// The name of the domain of the rules outside of any `[[domain]]`.
pub(crate) const DEFAULT_DOMAIN: &str = "default";

table! {
    /// A set of rules for doors, masters and `tollgate replay --domain`. A gate uses only the rules of the domain
    /// `default`.
    struct DomainTable {
        /// The name of the domain, unique in the file.
        name: Name = required,
        /// The rules of this domain. Written `[[domain.rule]]`, once for each.
        rule: Rules = empty,
    }
}

/// The rules of a domain.
pub(super) type Rules = Vec<Located<RuleTable>>;
/// All domains but the default one.
pub(super) type Domains = Vec<Located<DomainTable>>;

/// The default domain, with the rules of sites and the priorities, followed by the others.
pub(super) fn resolve(
    (rules, site_rules, priorities): (Rules, Vec<SiteRules>, Priorities),
    domains: Domains,
    context: &RuleContext,
    errors: &mut ErrorCollector,
) -> Vec<Domain> {
    let priorities = priority::resolve(priorities, context, errors);
    let mut names = HashSet::new();
    let of_sites = site_rules.into_iter().map(|site| (site.context(context), site.rules));
    let groups = std::iter::once((context.clone(), rules)).chain(of_sites).collect();
    let mut all = vec![Domain::new(DEFAULT_DOMAIN.to_string(), groups, priorities, errors)];
    for Located { value: domain, .. } in domains {
        let name = domain.name.map_or_else(String::new, |name| {
            if name.value == DEFAULT_DOMAIN {
                errors.report(&name.span, "the domain `default` always exists: write its rules as `[[rule]]`");
            } else if !names.insert(name.value.clone()) {
                errors.report(&name.span, "another domain has this name: write another, or join the two");
            }
            name.value
        });
        all.push(Domain::new(name, vec![(context.clone(), domain.rule.value)], Vec::new(), errors));
    }
    all
}

/// Number of key tables that share `gate.memory`: one or two for each rule without a `memory` of its own.
pub(super) fn tables(rules: &Rules, site_rules: &[SiteRules], domains: &Domains) -> usize {
    let of_sites = site_rules.iter().flat_map(|site| &site.rules);
    let others = domains.iter().flat_map(|domain| &domain.value.rule.value);
    rules.iter().chain(of_sites).chain(others).map(|rule| rule.value.tables()).sum()
}

impl Domain {
    /// The domain with the rules of all `groups`. Each group is converted with its own context: one group for the rules
    /// of the domain, and in the default domain one for each site.
    fn new(
        name: String,
        groups: Vec<(RuleContext, Rules)>,
        priorities: Vec<Priority>,
        errors: &mut ErrorCollector,
    ) -> Self {
        let mut names = HashSet::new();
        let all = || groups.iter().flat_map(|(_, rules)| rules);
        for name in all().filter_map(|rule| rule.value.name.as_ref()) {
            if !names.insert(name.value.clone()) {
                errors.report(&name.span, "another rule of this domain has this name: write another");
            }
        }
        let spans: Vec<_> = all().map(|rule| rule.value.state.span.clone()).collect();
        let account = groups.first().and_then(|(context, _)| context.account.clone());
        let rules =
            groups.into_iter().flat_map(|(context, rules)| rules.into_iter().map(move |rule| (context.clone(), rule)));
        let rules: Vec<_> = rules.map(|(context, rule)| rule.resolve(&context, errors)).collect();
        let mut at_master = HashSet::new();
        for (rules, span) in rules.iter().zip(&spans) {
            let linked = rules.iter().filter(|rule| rule.state == StateLocation::Master);
            let repeated =
                linked.map(|rule| rule.domain_at_master(&name)).find(|domain| !at_master.insert(domain.clone()));
            if let Some(domain) = repeated {
                let message = format!(
                    "another rule is {} at the master too, which would mix up their keys: write another `wire_domain`",
                    shown(&domain)
                );
                errors.report(span, message);
            }
        }
        let rules: Vec<_> = rules.into_iter().flatten().collect();
        let looks_at_flags = rules.iter().any(|settings| settings.rule.looks_at_flags())
            || priorities.iter().any(Priority::looks_at_flags);
        Self { name, rules, priorities, account: account.filter(|_| looks_at_flags) }
    }
}

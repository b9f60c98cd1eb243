//! The rules of domains other than the default one.
//!
//! A domain is a named set of rules. Requests that the gate forwards are subject to the default domain only. The other
//! domains are for doors, the interfaces for programs and proxies that ask for decisions: they name the domain.

use std::sync::Arc;

use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;

use super::remote_state::RemoteLinks;
use super::rules::Rules;
use crate::settings::{Domain, Gate as Settings};

/// The name and the rules of each domain other than the default one.
pub(crate) type OtherDomains = Vec<(String, Arc<Rules>)>;

/// Creates the rules of `domains`, at the start and at each reload. Rules that are unchanged since `before` a reload
/// keep their state and their counters.
pub(crate) fn load(
    domains: &[Domain],
    settings: &Settings,
    links: RemoteLinks<'_>,
    clock: &Clock,
    before: &OtherDomains,
) -> Result<OtherDomains, BuildError> {
    // Only the default domain is shared through masters.
    let links = RemoteLinks { masters: None, ..links };
    let rules = |domain: &Domain| {
        let before = before.iter().find(|(name, _)| *name == domain.name).map(|(_, rules)| &**rules);
        Ok((domain.name.clone(), Arc::new(Rules::load(domain, settings, links, clock, before)?)))
    };
    domains.iter().map(rules).collect()
}

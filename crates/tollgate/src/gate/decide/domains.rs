//! The rules of domains other than the default one. Forwarded requests use the default domain only; doors use any.

use std::sync::Arc;

use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;

use super::remote_state::RemoteLinks;
use super::rules::Rules;
use crate::settings::{Domain, Gate as Settings};

/// The rules of each other domain, by name.
pub(crate) type OtherDomains = Vec<(String, Arc<Rules>)>;

/// The rules of these domains. Rules that are unchanged since `before` a reload keep their state and their counters.
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

//! The rules of domains other than the default one. Forwarded requests use the default domain only; doors use any.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_core::rule::Mode;
use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;

use super::remote_state::{RemoteLinks, RemoteState};
use super::rules::Rules;
use crate::settings::{Domain, Gate as Settings};

/// The rules of each other domain, by name.
pub(crate) struct OtherDomains(ArcSwap<Named>);

/// New rules of a reload that are not in force yet.
pub(crate) type Named = Vec<(String, Arc<Rules>)>;

impl OtherDomains {
    /// Rules without any state.
    pub(crate) fn new(
        domains: &[Domain],
        settings: &Settings,
        links: RemoteLinks<'_>,
        clock: &Clock,
    ) -> Result<Self, BuildError> {
        let none = Self(ArcSwap::default());
        let named = none.read(domains, settings, links, clock)?;
        none.take_over(named);
        Ok(none)
    }

    /// The rules of these domains. Unchanged rules keep their state and their counters.
    pub(crate) fn read(
        &self,
        domains: &[Domain],
        settings: &Settings,
        links: RemoteLinks<'_>,
        clock: &Clock,
    ) -> Result<Named, BuildError> {
        let before = self.0.load();
        // Masters know the rules of the default domain only.
        let links = RemoteLinks { masters: None, ..links };
        let rules = |domain: &Domain| {
            let mut domain = domain.clone();
            if settings.mode == Mode::Observe {
                domain.rules.iter_mut().for_each(|settings| settings.rule.mode = Mode::Observe);
            }
            let known = before.iter().find(|(name, _)| *name == domain.name).map(|(_, rules)| rules);
            let remote_state = RemoteState::new(&domain, links, clock, known.map(|rules| &rules.remote_state))?;
            let rules = match known {
                Some(known) => known.succeeded_by(&domain, remote_state, settings.hold),
                None => Rules::new(&domain, remote_state, settings.hold, clock.now()),
            };
            Ok((domain.name, Arc::new(rules?)))
        };
        domains.iter().map(rules).collect()
    }

    /// Puts rules into force.
    pub(crate) fn take_over(&self, named: Named) {
        self.0.store(Arc::new(named));
    }

    /// The rules of the domain of this name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Rules>> {
        self.0.load().iter().find(|(known, _)| known == name).map(|(_, rules)| rules.clone())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Arc<Named> {
        self.0.load_full()
    }
}

//! The backends of each site (hosts that share backends and rules), selected by the host of a request.

use std::sync::Arc;

use tollgate_core::site::{HostPattern, find_site};

use super::{Backend, Backends};
use crate::gate::decide::queue::Queue;
use crate::settings::{BackendUrl, Gate as Settings};

/// The backends of all sites.
pub(crate) struct SiteBackends {
    /// Each backend once; several sites may share one.
    pub(crate) all: Vec<Arc<Backend>>,
    sites: Vec<SiteGroup>,
    /// The backends of the gate, for hosts that belong to no site; may be empty.
    others: Backends,
}

/// The hosts of one site, and their backends.
struct SiteGroup {
    hosts: Vec<HostPattern>,
    backends: Backends,
}

impl SiteBackends {
    /// The backends of `settings`, with their queues. Those that were in `before` are kept, with their health.
    pub(crate) fn new(
        settings: &Settings,
        before: Option<&Self>,
        queue_of: impl Fn(&BackendUrl) -> Arc<Queue>,
    ) -> Self {
        let known = |url: &BackendUrl| before?.all.iter().find(|backend| backend.url == *url).cloned();
        let backend = |url: &BackendUrl| known(url).unwrap_or_else(|| Backend::new(url, queue_of(url)));
        let all: Vec<_> = settings.all_backends().into_iter().map(backend).collect();
        let find = |url: &BackendUrl| all.iter().find(|backend| backend.url == *url).cloned();
        let group = |urls: &[BackendUrl]| Backends::new(urls.iter().filter_map(find).collect());
        let site =
            |site: &crate::settings::Site| SiteGroup { hosts: site.hosts.clone(), backends: group(&site.backends) };
        Self { sites: settings.sites.iter().map(site).collect(), others: group(&settings.backends), all }
    }

    /// The backends for requests with this host. Without sites, those of the gate.
    pub(crate) fn of(&self, host: Option<&[u8]>) -> &Backends {
        if self.sites.is_empty() {
            return &self.others;
        }
        let site = find_site(self.sites.iter().map(|site| site.hosts.as_slice()), host.unwrap_or_default());
        site.map_or(&self.others, |site| &self.sites[site].backends)
    }

    /// Whether there are sites, but no backend for this host.
    pub(crate) fn is_unknown(&self, host: Option<&[u8]>) -> bool {
        !self.sites.is_empty() && self.of(host).len() == 0
    }

    /// Whether a request would be sent to any backend.
    pub(crate) fn can_serve(&self) -> bool {
        self.others.can_serve() || self.sites.iter().any(|site| site.backends.can_serve())
    }

    /// Whether there is a backend with this id.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.all.iter().any(|backend| backend.id == id)
    }
}

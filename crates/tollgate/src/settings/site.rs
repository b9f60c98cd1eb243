//! `[[site]]`: several sites behind one gate, each with its own backends, rules and certificates.
//!
//! A rule of a site is a rule of the default domain with one more condition, the site of the request. All rules of a
//! request are therefore still evaluated before any is charged. The name of such a rule begins with that of its site.

use std::borrow::Cow;

use tollgate_core::queue::Shares;
use tollgate_core::site::{HostPattern, SiteHosts, find_site};
use tollgate_core::virtual_clock::Cores;

use super::domain::Rules;
use super::error::{ErrorCollector, shown};
use super::fairness::{Fairness, SHARE_ERROR};
use super::gate::{CertificateFiles, Concurrency, Gate};
use super::rule::RuleContext;
use super::table::{Located, table};
use super::value::{BackendUrl, Name, OneOrMany, Thousandths, text_value};

/// A site behind the gate, without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Its name in metrics, in the console and in the names of its rules.
    pub(crate) name: String,
    /// Its hosts.
    pub(crate) hosts: Vec<HostPattern>,
    /// Its backends.
    pub(crate) backends: Vec<BackendUrl>,
    /// Its certificates. May be empty.
    pub(crate) tls: Vec<CertificateFiles>,
    /// The queue of each of its backends.
    queue: SiteQueue,
}

/// The settings of a backend's queue that a site may set instead of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SiteQueue {
    /// The cores of one backend.
    cores: Cores,
    /// Maximum number of requests in flight at one backend. None: the gate adapts it.
    in_flight: Option<u32>,
    /// The shares of clients.
    shares: Shares,
}

text_value!(HostPattern, "a host", "shop.example", |text| {
    let message = || {
        format!(
            "{} is not a host: write one without a port, such as \"shop.example\", or \"*.shop.example\" for all \
             hosts below it",
            shown(text)
        )
    };
    Self::parse(text).ok_or_else(message)
});

table! {
    /// A site behind the gate. Requests with one of its hosts go to its backends. Without any `[[site]]`, all requests
    /// go to `gate.backend`. With sites, `gate.backend` serves the hosts of no site; without it, such requests get
    /// status 421.
    struct SiteTable {
        /// The hosts of the site, compared with the `Host` header of each request, without its port and trailing dot,
        /// case-insensitive. `"*.shop.example"` is every host below `shop.example`, at any depth. If several sites
        /// match, the most specific host decides. At most 64 hosts.
        host: OneOrMany<Located<HostPattern>> = required,
        /// The name of the site in metrics, in the console and in the names of its rules, unique in the file. Default:
        /// its first host.
        name: Name,
        /// The backends of the site, in the same form as `gate.backend`. Each backend has its own queue, in-flight
        /// limit and prices; sites with the same backend share them.
        backend: OneOrMany<Located<BackendUrl>> = required,
        /// The TLS certificates of the site. Clients get the first that is valid for the requested name (SNI).
        /// Default: `gate.tls`.
        tls: OneOrMany<CertificateFiles> = empty,
        /// Number of CPU cores of each of its backends. Default: `gate.cores`.
        cores: Cores,
        /// Maximum number of requests in flight at each of its backends, or `"auto"`. Default: `gate.in_flight`.
        in_flight: Concurrency,
        /// The shares of clients while a backend of the site is busy.
        fairness: SiteFairnessTable = "{}",
        /// Rules for the requests of this site, in addition to those of the file. Written `[[site.rule]]`, once for
        /// each. In logs, metrics and responses, the name of the site and a slash precede the name of the rule, as in
        /// `shop/login`. The `share` of a budget is a share of the cores of this site's backends.
        rule: Rules = empty,
    }
}

table! {
    /// The shares of clients while a backend of the site is busy. Default: those of `gate.fairness`, which also defines
    /// the users.
    struct SiteFairnessTable {
        /// The share of an address (IPv6: a /64).
        address as "ip/32": Thousandths where ..=1000 => SHARE_ERROR,
        /// The share of its network (IPv6: a /56).
        network as "ip/24": Thousandths where ..=1000 => SHARE_ERROR,
        /// The share of its block (IPv6: a /48).
        block as "ip/16": Thousandths where ..=1000 => SHARE_ERROR,
    }
}

/// All sites of a file.
pub(super) type Sites = Vec<Located<SiteTable>>;

/// Maximum number of sites. Each request is compared with the hosts of all of them.
const SITES_MAX: usize = 64;
/// Maximum number of hosts of one site.
const HOSTS_MAX: usize = 64;

/// Adds the sites to `gate`. Returns the rules of each site, whose names now begin with that of the site.
pub(super) fn resolve(sites: Sites, gate: &mut Gate, errors: &mut ErrorCollector) -> Vec<SiteRules> {
    if let Some(site) = sites.get(SITES_MAX) {
        errors.report(&site.span, format!("too many sites: write at most {SITES_MAX}"));
        return Vec::new();
    }
    let has_tls = !gate.tls.is_empty() || sites.iter().any(|site| site.value.written.has("tls"));
    let mut hosts: Vec<HostPattern> = Vec::new();
    let mut of_sites = Vec::new();
    let mut has_room = gate.hold_memory_error().is_none();
    for Located { value: table, span } in sites {
        if has_tls && gate.tls.is_empty() && !table.written.has("tls") {
            let message = "the listener uses TLS, and this site has no certificate: write `[site.tls]` with `cert` and \
                           `key`, or a certificate for it as `tls` in `[gate]`";
            errors.missing(&span, message);
        }
        let rules = table.rule.value.clone();
        let site = table.resolve(gate, &mut hosts, errors);
        // After an error in the site, its rules are still checked for errors.
        of_sites.push((site.as_ref().map_or_else(String::new, |site| site.name.clone()), rules));
        gate.sites.extend(site);
        if let Some(error) = gate.hold_memory_error().filter(|_| has_room) {
            has_room = false;
            errors.report(&span, error);
        }
    }
    let hosts_of = |name: &str| {
        let (own, others): (Vec<_>, Vec<_>) = gate.sites.iter().partition(|site| site.name == name);
        SiteHosts::new(
            own.into_iter().flat_map(|site| site.hosts.clone()).collect(),
            others.into_iter().flat_map(|site| &site.hosts),
        )
    };
    let cores = |name: &str| gate.sites.iter().find(|site| site.name == name).map_or(gate.cores, Site::cores);
    let named = of_sites.into_iter().map(|(site, mut rules)| {
        for name in rules.iter_mut().filter_map(|rule| rule.value.name.as_mut()) {
            name.value = format!("{site}/{}", name.value);
        }
        SiteRules { rules, hosts: hosts_of(&site), cores: cores(&site) }
    });
    named.collect()
}

/// The rules of one site.
pub(super) struct SiteRules {
    pub(super) rules: Rules,
    /// The hosts to which the rules are limited.
    hosts: SiteHosts,
    /// The cores of its backends together.
    cores: Cores,
}

impl SiteRules {
    /// The context in which the site's rules are converted, given that of the other rules.
    pub(super) fn context(&self, context: &RuleContext) -> RuleContext {
        RuleContext { cores: self.cores, site: Some(self.hosts.clone()), ..context.clone() }
    }
}

impl SiteTable {
    /// The site, with the values of `gate` for keys that it does not set. `hosts` are the hosts of all sites before it;
    /// those of this site are added. None after an error.
    fn resolve(self, gate: &Gate, hosts: &mut Vec<HostPattern>, errors: &mut ErrorCollector) -> Option<Site> {
        let shares = self.fairness.value.resolve(gate.fairness.shares());
        let queue = SiteQueue {
            cores: self.cores.map_or(gate.cores, |cores| cores.value),
            in_flight: self.in_flight.map_or(gate.in_flight, |max| max.value),
            shares,
        };
        let host = self.host?;
        let name_span = self.name.as_ref().map_or(&host.span, |name| &name.span).clone();
        let own = read_hosts(host, hosts, errors);
        let backend = self.backend?;
        if backend.value.is_empty() {
            errors.report(&backend.span, "a site needs a backend: write its URL, such as \"http://127.0.0.1:8080\"");
        }
        refuse_conflict(&backend.value, queue, gate, errors);
        let name = match self.name {
            Some(name) => name.value,
            None => own.first()?.to_string(),
        };
        if gate.sites.iter().any(|site| site.name == name) {
            errors.report(&name_span, format!("another site has the name `{name}`: write another `name`"));
        }
        Some(Site {
            name,
            hosts: own,
            backends: backend.value.into_iter().map(|url| url.value).collect(),
            tls: self.tls.value,
            queue,
        })
    }
}

/// The hosts of a site. Reports those that are in `before`, the hosts of earlier sites, and adds the others to it.
fn read_hosts(
    host: Located<Vec<Located<HostPattern>>>,
    before: &mut Vec<HostPattern>,
    errors: &mut ErrorCollector,
) -> Vec<HostPattern> {
    if host.value.is_empty() {
        errors.report(&host.span, "a site needs a host: write one such as \"shop.example\"");
    }
    if host.value.len() > HOSTS_MAX {
        errors.report(&host.span, format!("too many hosts: write at most {HOSTS_MAX}, or a wildcard"));
    }
    let mut own = Vec::new();
    for Located { value: host, span } in host.value.into_iter().take(HOSTS_MAX) {
        if before.contains(&host) {
            errors.report(&span, format!("`{host}` is a host of a site already: write it once"));
            continue;
        }
        before.push(host.clone());
        own.push(host);
    }
    own
}

/// Reports each backend that the gate or an earlier site also has, with other settings of its queue.
fn refuse_conflict(backends: &[Located<BackendUrl>], queue: SiteQueue, gate: &Gate, errors: &mut ErrorCollector) {
    let is_other = |url: &BackendUrl| {
        let of_sites = gate.sites.iter().filter(|site| site.backends.contains(url)).map(|site| site.queue);
        let of_gate = gate.backends.contains(url).then(|| SiteQueue::of(gate));
        of_sites.chain(of_gate).any(|known| known != queue)
    };
    for Located { value: url, span } in backends {
        if is_other(url) {
            let message = "a backend has one queue, and this one has other values of `cores`, `in_flight` or \
                           `fairness` above: write the same here";
            errors.report(span, message);
        }
    }
}

impl SiteFairnessTable {
    fn resolve(self, gate: Shares) -> Shares {
        let share = |share: Option<Located<u32>>, default: u32| share.map_or(default, |share| share.value);
        Shares {
            address_milli: share(self.address, gate.address_milli),
            network_milli: share(self.network, gate.network_milli),
            block_milli: share(self.block, gate.block_milli),
        }
    }
}

impl SiteQueue {
    fn of(gate: &Gate) -> Self {
        Self { cores: gate.cores, in_flight: gate.in_flight, shares: gate.fairness.shares() }
    }
}

impl Site {
    /// The cores of its backends together.
    fn cores(&self) -> Cores {
        sum(self.backends.iter().map(|_| self.queue.cores))
    }
}

fn sum(cores: impl Iterator<Item = Cores>) -> Cores {
    Cores::from_milli(cores.fold(0_u32, |sum, cores| sum.saturating_add(cores.as_milli())))
}

impl Gate {
    /// The index of the site that `host` belongs to.
    pub(crate) fn site_of(&self, host: &[u8]) -> Option<usize> {
        find_site(self.sites.iter().map(|site| site.hosts.as_slice()), host)
    }

    /// The backends of the gate and of all sites, each once.
    pub(crate) fn all_backends(&self) -> Vec<&BackendUrl> {
        let mut all: Vec<&BackendUrl> = Vec::new();
        for url in self.backends.iter().chain(self.sites.iter().flat_map(|site| &site.backends)) {
            if !all.contains(&url) {
                all.push(url);
            }
        }
        all
    }

    /// The names of the sites that a backend serves. Empty if it serves only the hosts of no site.
    pub(crate) fn sites_at(&self, url: &BackendUrl) -> Vec<&str> {
        self.sites.iter().filter(|site| site.backends.contains(url)).map(|site| site.name.as_str()).collect()
    }

    /// The cores of all backends together. Without backends, `gate.cores`.
    pub(crate) fn all_cores(&self) -> Cores {
        let all = self.all_backends();
        if all.is_empty() { self.cores } else { sum(all.into_iter().map(|url| self.queue_at(url).cores)) }
    }

    /// The gate with the queue settings (cores, in-flight limit and shares) of this backend, which those of its site
    /// may replace. None: those of the gate.
    pub(crate) fn at_backend(&self, url: Option<&BackendUrl>) -> Cow<'_, Self> {
        let queue = url.map_or(SiteQueue::of(self), |url| self.queue_at(url));
        if queue == SiteQueue::of(self) {
            return Cow::Borrowed(self);
        }
        let SiteQueue { cores, in_flight, shares: Shares { address_milli, network_milli, block_milli } } = queue;
        let fairness = Fairness { address_milli, network_milli, block_milli, ..self.fairness.clone() };
        Cow::Owned(Self { cores, in_flight, fairness, ..self.clone() })
    }

    /// The queue settings of a backend. Those of the gate apply to a backend that the gate has itself.
    fn queue_at(&self, url: &BackendUrl) -> SiteQueue {
        let site = self.sites.iter().find(|site| site.backends.contains(url));
        site.filter(|_| !self.backends.contains(url)).map_or(SiteQueue::of(self), |site| site.queue)
    }

    /// All certificates of the gate and its sites.
    pub(crate) fn all_tls(&self) -> impl Iterator<Item = &CertificateFiles> {
        self.tls.iter().chain(self.sites.iter().flat_map(|site| &site.tls))
    }
}

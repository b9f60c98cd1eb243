//! `[link]`: the masters that this gate reports to, and which of its rules each keeps the books of.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::path::PathBuf;

use tollgate_gatekeeper::link::{Endpoint, LinkSettings, LinkedRule, MasterSettings, PublicKey};
use toml::Spanned;
use toml::de::DeValue;

use super::domain::{DEFAULT_DOMAIN, Domain};
use super::fault::{Collector, shown};
use super::roles::Master;
use super::rule::State;
use super::shape::Shape;
use super::table::{Placed, Value, table};
use super::value::{Name, read_text};

/// Where a master is.
#[derive(Clone, Debug)]
pub(super) struct MasterEndpoint(Endpoint);

impl Value for MasterEndpoint {
    fn shape() -> Shape {
        Shape::Text { what: "a host and port", example: "127.0.0.1:10004" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        read_text(value, faults, &Self::shape(), |text| {
            let no_endpoint = |_| format!("{} is no host and port: write one such as \"127.0.0.1:10004\"", shown(text));
            Endpoint::parse(text).map(Self).map_err(no_endpoint)
        })
    }
}

/// A public key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(pub(super) PublicKey);

impl Value for Key {
    fn shape() -> Shape {
        Shape::Text { what: "a public key", example: "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        read_text(value, faults, &Self::shape(), |text| PublicKey::parse(text).map(Self).map_err(|no| no.to_string()))
    }
}

/// What links rules to masters, and where the keys for that are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The masters and their rules. Its keys are in the file.
    pub(crate) settings: LinkSettings,
    /// The key pair that masters know this gate by.
    pub(crate) key_file: Option<PathBuf>,
}

table! {
    /// The masters that this gate reports to. Without it, and with `[master]` in the same file, that master.
    struct LinkTable {
        /// The masters. Written `[[link.master]]`, once for each.
        master: LinkedMasters,
        /// One of how many refusals is reported, for the masters' figures. Refusals cost nothing; without it none is reported.
        refusals: NonZeroU32,
        /// Whether reports say, in Smockron's log info, what CPU time a request took, its method and path, and its user agent. For budgets the time
        /// is told when the request has ended; for other limits it is 0.
        log_info: bool = "false",
        /// How many callers are counted at most for each master.
        identifiers: NonZeroU32 = "1000000",
        /// The key pair that masters know this gate by, as `tollgate keys` makes it. Needed for masters with a `key`.
        key_file: PathBuf,
    }
}

table! {
    /// A master that this gate reports to.
    struct LinkedMasterTable {
        /// Where it hears reports: a host, by name or address, and a port.
        accounting: MasterEndpoint = "\"127.0.0.1:10004\"",
        /// Where it says whom to delay. Without it the next port of the same host, as Smockron has it.
        control: MasterEndpoint,
        /// Its public key, as `tollgate keys` prints it. With it the link is authenticated and private; without it, it should stay on this
        /// machine.
        key: Key,
        /// The domains that it keeps the books of, as rules name them to masters. Without it, all that no other master names.
        domains: Vec<Placed<Name>>,
    }
}

type LinkedMasters = Vec<Placed<LinkedMasterTable>>;

/// What links the rules of the default domain to masters; none if there is no such rule.
pub(super) fn meaning(
    table: Option<Placed<LinkTable>>,
    master: Option<&Master>,
    domains: &[Domain],
    faults: &mut Collector,
) -> Option<Link> {
    let rules = domains.iter().find(|domain| domain.name == DEFAULT_DOMAIN).map(|domain| domain.rules.as_slice());
    let linked = rules.unwrap_or_default().iter().filter(|rule| rule.state == State::Master);
    let mut linked: Vec<_> = linked
        .map(|rule| LinkedRule { rule: rule.rule.name.clone(), domain: rule.domain_at_master(DEFAULT_DOMAIN) })
        .collect();
    let Some(Placed { value: table, span }) = table else {
        // A master with keys lets nobody in who has none.
        let master = master.filter(|master| !linked.is_empty() && master.key_file.is_none())?;
        let endpoint = |address: std::net::SocketAddr| Endpoint::parse(&address.to_string()).ok();
        let (accounting, control) = (endpoint(master.accounting)?, endpoint(master.control)?);
        let masters = vec![MasterSettings { accounting, control, key: None, rules: linked }];
        let settings =
            LinkSettings { masters, refusals_sampled: None, identifiers_max: 1_000_000, log_info: false, keys: None };
        return Some(Link { settings, key_file: None });
    };
    let identifiers_max = table.identifiers.value.get() as usize;
    let refusals_sampled = table.refusals.map(|refusals| refusals.value.get());
    let masters = table.master.map(|masters| masters.value).unwrap_or_default();
    if masters.is_empty() {
        faults.missing(
            &span,
            "`[link]` names no master: write `[[link.master]]` with `accounting = \"127.0.0.1:10004\"`",
        );
    }
    refuse_doubles(&masters, faults);
    for key in masters.iter().filter_map(|master| master.value.key.as_ref()) {
        if !table.written.has("key_file") {
            faults.fault(&key.span, "a master with a key wants to know who comes: make keys with `tollgate keys gate.key`, and write `key_file` in `[link]`");
        }
    }
    // Who names domains goes first, so that what is left over is left for the others.
    let mut order: Vec<_> = masters.iter().map(|master| (&master.value, Vec::new())).collect();
    order.sort_by_key(|(master, _)| master.domains.is_none());
    for (master, rules) in &mut order {
        let keeps = |rule: &mut LinkedRule| match &master.domains {
            Some(domains) => domains.value.iter().any(|name| name.value.0 == rule.domain),
            None => true,
        };
        rules.extend(linked.extract_if(.., keeps));
    }
    for rule in linked.iter().filter(|_| !masters.is_empty()) {
        let message = format!("no master keeps {}: add it to the `domains` of one", shown(&rule.domain));
        faults.fault(&span, message);
    }
    let masters = order.into_iter().filter_map(|(master, rules)| master.meaning(rules, faults)).collect();
    let settings =
        LinkSettings { masters, refusals_sampled, identifiers_max, log_info: table.log_info.value, keys: None };
    Some(Link { settings, key_file: table.key_file.map(|path| path.value) })
}

fn refuse_doubles(masters: &LinkedMasters, faults: &mut Collector) {
    let mut names = HashSet::new();
    for name in masters.iter().filter_map(|master| master.value.domains.as_ref()).flat_map(|domains| &domains.value) {
        if !names.insert(&name.value.0) {
            faults.fault(&name.span, "another master keeps this domain: write it once");
        }
    }
    if masters.iter().filter(|master| master.value.domains.is_none()).count() > 1 {
        let last = &masters[masters.len() - 1];
        faults.fault(&last.span, "two masters would keep everything: write the `domains` of one");
    }
}

impl LinkedMasterTable {
    fn meaning(&self, rules: Vec<LinkedRule>, faults: &mut Collector) -> Option<MasterSettings> {
        let accounting = self.accounting.value.0.clone();
        let control = match &self.control {
            Some(control) => Some(control.value.0.clone()),
            None => accounting.next_port(),
        };
        if control.is_none() {
            faults.fault(&self.accounting.span, "there is no port after this one: write `control` too");
        }
        let key = self.key.as_ref().map(|key| key.value.0);
        Some(MasterSettings { accounting, control: control?, key, rules })
    }
}

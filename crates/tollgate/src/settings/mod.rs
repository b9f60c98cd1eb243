//! Settings: a TOML file becomes meaning once, and everything that is wrong with it is said in one go.
//!
//! A file is parsed with the place of every key and value kept. Tables ([`mod@table`]) are read into the structs that declare them, then
//! each struct becomes what it means, in the core's own types. Faults are collected on the way and never stop it. The declarations are also the
//! manual: [`mod@schema`] and [`mod@reference`] are made from them.

mod access_log;
mod bounds;
mod buffer;
mod condition;
mod domain;
mod doors;
mod escalation;
mod fairness;
mod fault;
mod gate;
mod health;
mod in_force;
mod limit;
mod link;
mod listeners;
mod pages;
mod priority;
mod ratelimit;
mod reference;
mod roles;
mod rule;
mod schema;
mod secret;
mod shape;
mod suggestion;
mod syntax;
mod table;
mod telemetry;
mod timeouts;
mod trusted;
mod value;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use tollgate_core::virtual_clock::Cores;
use tollgate_core::watch::NEVER;
use toml::de::DeTable;

pub(crate) use access_log::{AccessLog, LogFormat, LogOutput};
pub(crate) use buffer::ResponseBuffer;
pub(crate) use domain::{DEFAULT_DOMAIN, Domain};
pub(crate) use doors::{DoorLog, Doors};
pub(crate) use fairness::{UserClass, UserPlace};
pub(crate) use fault::Faults;
pub(crate) use gate::{CertificateFiles, ForwardedHeader, Gate, Hold, TollSource};
pub(crate) use health::HealthCheck;
pub(crate) use in_force::in_force;
pub(crate) use link::Link;
pub(crate) use pages::{Page, PagePart, Pages};
pub(crate) use priority::{Precedence, Priority};
pub(crate) use ratelimit::{ServedDomain, ServedLimits, is_identified};
pub(crate) use reference::reference;
pub(crate) use roles::{Admin, FlagState, Graphite, Master, Redis, Watch, Webhook};
pub(crate) use rule::{RuleSettings, State};
pub(crate) use schema::schema;
pub(crate) use telemetry::Telemetry;
pub(crate) use value::{BackendUrl, Protocol};

use domain::{Domains, Rules};
use doors::DoorsTable;
use fault::Collector;
use gate::GateTable;
use link::LinkTable;
use priority::Priorities;
use roles::{AdminTable, MasterTable, MetricsTable, RedisTable, WatchTable};
use rule::Surroundings;
use table::{Entries, table};
use telemetry::TelemetryTable;

/// What a file says. A role that the file does not name is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The reverse proxy.
    pub(crate) gate: Option<Gate>,
    /// The rules by domain; the first is [`DEFAULT_DOMAIN`], always there.
    pub(crate) domains: Vec<Domain>,
    /// The bookkeeper off the path.
    pub(crate) master: Option<Master>,
    /// What links the default domain's rules to masters; none if no rule needs one, or nothing says where one is.
    pub(crate) link: Option<Link>,
    /// The ways in for programs and proxies that are not behind the gate.
    pub(crate) doors: Option<Doors>,
    /// The address for operators.
    pub(crate) admin: Option<Admin>,
    /// What turns refusals into episodes and flags.
    pub(crate) watch: Watch,
    /// Graphite, if figures are sent there.
    pub(crate) graphite: Option<Graphite>,
    /// Who is told in OpenTelemetry's protocol, if anybody is.
    pub(crate) telemetry: Option<Telemetry>,
    /// Redis or Valkey.
    pub(crate) redis: Option<Redis>,
}

/// A file larger than this is not a settings file.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

table! {
    /// A settings file. Every table may be left out; an empty file means the defaults.
    struct FileTable {
        /// The reverse proxy.
        gate: GateTable,
        /// Rules of the domain `default`. Written `[[rule]]`, once for each.
        rule: Rules,
        /// Which requests have another weight in the queue than others. Written `[[priority]]`, once for each.
        priority: Priorities,
        /// More domains, each with its own rules. Written `[[domain]]`, once for each.
        domain: Domains,
        /// The bookkeeper of a fleet of gates.
        master: MasterTable,
        /// The masters that this gate reports to.
        link: LinkTable,
        /// Ways in for programs and proxies that are not behind this gate.
        doors: DoorsTable,
        /// The address for operators.
        admin: AdminTable,
        /// What turns refusals into episodes and flags.
        watch: WatchTable = "{}",
        /// Where figures are sent to.
        metrics: MetricsTable,
        /// Who is told of figures and traces in OpenTelemetry's protocol.
        telemetry: TelemetryTable,
        /// Redis or Valkey, for rules with `state = "redis"` and a master's `books`.
        redis: RedisTable,
    }
}

#[cfg(test)]
mod tests;

impl Settings {
    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Faults> {
        let file = path.display().to_string();
        let bytes = read_file(path).map_err(|message| Faults::unreadable(&file, message))?;
        match String::from_utf8(bytes) {
            // Whoever cut a file short, or named the wrong one, is not to find all of its rules gone.
            Ok(text) if text.trim_start_matches('\u{feff}').trim().is_empty() => {
                Err(Faults::unreadable(&file, "is empty: for the defaults leave `--config` away, or write a comment"))
            }
            Ok(text) => {
                let mut settings = Self::parse(&file, &text)?;
                ratelimit::load(&mut settings)?;
                Ok(settings)
            }
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let mut faults = Collector::default();
                faults.syntax(at..at, "this byte is not UTF-8: save the file as UTF-8");
                Err(faults.place(&file, &String::from_utf8_lossy(error.as_bytes())))
            }
        }
    }

    /// Reads the text of a file of this name.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        let mut faults = Collector::of(Path::new(file));
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            syntax::report(&error, text, &mut faults);
        }
        let entries = Entries::new(document.get_ref(), document.span(), &mut faults);
        let settings = FileTable::read_entries(entries).meaning(&mut faults);
        if faults.is_empty() { Ok(settings) } else { Err(faults.place(file, text)) }
    }

    /// The rules of the domain of this name.
    pub(crate) fn rules(&self, domain: &str) -> Option<&[RuleSettings]> {
        self.domains.iter().find(|candidate| candidate.name == domain).map(|domain| domain.rules.as_slice())
    }
}

impl Default for Settings {
    /// What a file means in which nothing is said.
    fn default() -> Self {
        Self::parse("", "").expect("nothing said is nothing wrong, as a test shows")
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err("is a directory: name a file".to_string());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes, too large for a settings file"));
    }
    Ok(bytes)
}

impl FileTable {
    /// What the file means. What is wrong has been reported and is as good as absent.
    fn meaning(self, faults: &mut Collector) -> Settings {
        listeners::refuse_clashes(&self, faults);
        let gate = self.gate.map(|gate| gate.value.meaning(faults));
        let rules = self.rule.map(|rules| rules.value).unwrap_or_default();
        let priorities = self.priority.map(|priorities| priorities.value).unwrap_or_default();
        let domains = self.domain.map(|domains| domains.value).unwrap_or_default();
        let (cores, hold_max, memory_bytes) = {
            let gate = gate.clone().unwrap_or_default();
            // Those of all backends together.
            let cores = gate.cores.as_milli().saturating_mul(gate.backends.len().clamp(1, 1 << 16) as u32);
            (Cores::from_milli(cores), gate.hold.max, gate.memory_bytes)
        };
        let around = Surroundings {
            cores,
            hold_max,
            // A power of two, so that one more rule seldom gives all others tables of another size, which would have to begin empty.
            memory_bytes: memory_bytes / domain::tables(&rules, &domains).next_power_of_two() as u64,
            redis: self.written.has("redis"),
            master: self.written.has("link") || self.written.has("master"),
            account: self.watch.value.account(),
        };
        let domains = domain::meaning((rules, priorities), domains, &around, faults);
        let watch = self.watch.value.meaning(around.redis, faults);
        // A file without `[watch]` asks for no flags, so their absence is not worth a note.
        let why_no_flags = why_no_flags(&watch, &domains).filter(|_| self.written.has("watch"));
        let watch = Watch { why_no_flags, ..watch };
        let master = self.master.map(|master| master.value.meaning(around.redis, faults));
        Settings {
            link: link::meaning(self.link, master.as_ref(), &domains, faults),
            domains,
            gate,
            master,
            doors: self.doors.map(|doors| doors.value.meaning(&doors.span, around.redis, faults)),
            admin: self.admin.map(|admin| admin.value.meaning(faults)),
            watch,
            graphite: self.metrics.and_then(|metrics| metrics.value.meaning(faults)),
            telemetry: self.telemetry.and_then(|telemetry| telemetry.value.meaning(faults)),
            redis: self.redis.and_then(|redis| redis.value.meaning(faults)),
        }
    }
}

/// Whether nothing that this process itself refuses can lead to a flag, in words; none where it can, or where there are no rules.
fn why_no_flags(watch: &Watch, domains: &[Domain]) -> Option<String> {
    let class = &watch.account_class;
    let mut rules = domains.iter().flat_map(|domain| &domain.rules).peekable();
    let has_rules = rules.peek().is_some();
    // The fair queue refuses by this class, whatever rules there are.
    let can = class == "ip/32" || rules.any(|settings| settings.rule.class.to_string() == *class);
    (has_rules && !can && watch.flag_threshold != NEVER).then(|| {
        format!(
            "no rule has the class `{class}`: only refusals that others report lead to flags, unless `account_class` in [watch] is the class of a rule"
        )
    })
}
